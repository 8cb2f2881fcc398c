//! The program itself; the library says what it is for.
//!
//! `supervise` runs one command: frames on its input and output, all on channel 0. `init` is the first process of a
//! container and runs many, one `supervise` each, told apart by their channel. `porter`
//! carries files into and out of a container. `check-confinement` succeeds where commands can be confined. Nobody types these: the worker does.
//!
//! It starts once per command, so it leaves out what the standard library does before `main`: a handler for overflows of
//! the stack, for which all memory mappings are read, took a tenth of the time.

#![cfg_attr(not(test), no_main)]

mod init;
mod kernel;
mod outbox;
mod porter;
mod processes;
mod supervise;

use std::ffi::{CStr, c_char, c_int};

#[cfg_attr(not(test), unsafe(no_mangle))]
#[expect(unsafe_code, reason = "the C library calls it, with a list of strings that ends with a null")]
extern "C" fn main(_count: c_int, arguments: *const *const c_char) -> c_int {
    kernel::close_inherited();
    let mut given = Vec::new();
    // SAFETY: `arguments` points to strings that live as long as the process, the last of which is null.
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
        [_, "porter", directory] => porter::run(directory),
        [_, "check-confinement"] => supervise::check_confinement(),
        _ => return 2,
    };
    // There is nobody to tell why; whoever started it sees the stream end.
    c_int::from(result.is_err())
}
