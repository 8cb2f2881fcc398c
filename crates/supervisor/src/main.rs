//! The supervisor program; the library documents its purpose and its wire format.
//!
//! - `supervise` runs one command: frames on stdin and stdout, all on channel 0.
//! - `init` is PID 1 of a container. It runs many commands, one `supervise` process each, multiplexed by
//!   channel.
//! - `porter` is the file copier: it copies files into and out of a container.
//! - `check-confinement files` and `check-confinement processes` succeed where Landlock can confine commands so.
//!
//! The worker starts these modes; they are not meant for interactive use.
//!
//! One process starts per command, so the program skips the runtime setup that the standard library does
//! before `main`: its stack overflow handler reads all memory mappings, which took a tenth of the start time.

#![cfg_attr(not(test), no_main)]

mod copier;
mod init;
mod kernel;
mod processes;
mod supervise;
mod write_buffer;

use std::ffi::{CStr, c_char, c_int};

#[cfg_attr(not(test), unsafe(no_mangle))]
#[expect(unsafe_code, reason = "called by the C library with a null-terminated array of strings")]
extern "C" fn main(_count: c_int, arguments: *const *const c_char) -> c_int {
    kernel::close_inherited();
    let mut given = Vec::new();
    // SAFETY: `arguments` points to strings that live as long as the process; the array ends with a null
    // pointer.
    unsafe {
        let mut next = arguments;
        while !next.is_null() && !(*next).is_null() {
            given.push(CStr::from_ptr(*next).to_str().unwrap_or_default());
            next = next.add(1);
        }
    }
    let result = match given[..] {
        [_, "supervise"] => supervise::run(false),
        [_, "supervise", supervise::CONTAINED] => supervise::run(true),
        [_, "init"] => init::run(),
        [_, "porter", directory] => copier::run(directory),
        [_, "check-confinement", what] => supervise::check_confinement(what),
        _ => return 2,
    };
    // There is no channel to report the error on; the parent sees the stream end.
    c_int::from(result.is_err())
}
