# What a hostile command tries. Prints the name of each attempt that succeeds.

use strict;
use Socket;

my ($worker, $outside, $abstract, $ptrace, $pidfd_open, $pidfd_getfd) = @ARGV;

sub attempt { my ($name, $try) = @_; print "$name\n" if eval { $try->() } }

sub contains {
    my ($path, $text) = @_;
    open(my $file, '<', $path) or return 0;
    local $/;
    my $contents = <$file>;
    return defined $contents && index($contents, $text) >= 0;
}

sub connects {
    socket(my $socket, AF_UNIX, SOCK_STREAM, 0) or return 0;
    return connect($socket, pack_sockaddr_un($_[0]));
}

attempt('environ', sub { contains("/proc/$worker/environ", 'worker-secret') });
attempt('any environ', sub { grep { contains($_, 'worker-secret') } glob '/proc/[0-9]*/environ' });
attempt('memory', sub { open(my $memory, '<', "/proc/$worker/mem") });
attempt('directory', sub { opendir(my $root, "/proc/$worker/root/") });
# PTRACE_SEIZE: does not stop the worker.
attempt('ptrace', sub { syscall($ptrace, 0x4206, $worker + 0, 0, 0) == 0 });
attempt('pidfd_getfd', sub {
    my $process = syscall($pidfd_open, $worker + 0, 0);
    return $process >= 0 && syscall($pidfd_getfd, $process, 0, 0) >= 0;
});
attempt('signal', sub { kill(0, $worker) });
attempt('capabilities', sub { !contains('/proc/self/status', "CapEff:\t0000000000000000") });

attempt('shadow', sub { open(my $shadow, '<', '/etc/shadow') });
attempt('read', sub { contains("$outside/theirs", 'tenant-secret') });
attempt('list', sub { opendir(my $directory, $outside) });
attempt('write', sub { open(my $file, '>', "$outside/new") });
attempt('sysctl', sub { open(my $setting, '>>', '/proc/sys/kernel/core_pattern') });
attempt('socket', sub { connects("$outside/socket") });
attempt('abstract socket', sub { connects("\0$abstract") });
