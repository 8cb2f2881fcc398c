//! Resource usage that must not grow with the number of calls.

use std::{fmt, fs};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::executors::DockerExecutor;

/// The resources of this process and its containers at one time.
pub(super) struct Usage {
    open_files: usize,
    children: usize,
    containers: usize,
    memory_kib: u64,
}

impl Usage {
    pub(super) async fn now(docker: &DockerExecutor) -> Result<Self> {
        // Spare containers that are being created would look like growth.
        docker.wait_for_spare().await?;
        let status = fs::read_to_string("/proc/self/status")?;
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(Self {
            open_files: fs::read_dir("/proc/self/fd")?.count(),
            children: children()?,
            containers: docker.containers().await?,
            memory_kib: memory.trim().trim_end_matches(" kB").parse()?,
        })
    }
}

/// Processes whose parent is this one, zombies included.
fn children() -> Result<usize> {
    let own = std::process::id().to_string();
    let is_child = |entry: &fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.split(' ').nth(1) == Some(own.as_str()))
    };
    Ok(fs::read_dir("/proc")?.flatten().filter(is_child).count())
}

pub(super) struct Growth {
    calls: u32,
    open_files: i64,
    children: i64,
    containers: i64,
    memory_kib: i64,
}

impl Growth {
    pub(super) fn between(before: &Usage, after: &Usage, calls: u32) -> Self {
        let grown = |before: usize, after: usize| after.cast_signed() as i64 - before.cast_signed() as i64;
        Self {
            calls,
            open_files: grown(before.open_files, after.open_files),
            children: grown(before.children, after.children),
            containers: grown(before.containers, after.containers),
            memory_kib: after.memory_kib.cast_signed() - before.memory_kib.cast_signed(),
        }
    }

    /// Descriptions of the resources that grew beyond noise.
    pub(super) fn problems(&self) -> Vec<String> {
        let checks = [
            ("open files", self.open_files, 8),
            ("child processes", self.children, 0),
            ("containers", self.containers, 0),
            ("KiB of memory", self.memory_kib, 32 * 1024),
        ];
        let grown = checks.into_iter().filter(|(_, by, allowed)| by > allowed);
        grown.map(|(what, by, _)| format!("{by} more {what} after {} calls", self.calls)).collect()
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "calls": self.calls,
            "open_files": self.open_files,
            "child_processes": self.children,
            "containers": self.containers,
            "memory_kib": self.memory_kib,
        })
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "after {} calls: {:+} open files, {:+} child processes, {:+} containers, {:+} KiB of memory",
            self.calls, self.open_files, self.children, self.containers, self.memory_kib
        )
    }
}
