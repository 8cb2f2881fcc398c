//! Replays the corpus of a target, and looks for inputs that break it.

use std::{
    collections::HashSet,
    fs, io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    time::{Duration, Instant},
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use crate::{Target, mutate::mutate};

/// Inputs that are kept for mutation.
const MAX_POOL: usize = 20_000;
const MAX_INPUT_BYTES: usize = 16 * 1024;

/// How long to look.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    Inputs(u64),
    Time(Duration),
}

/// An input that breaks a property.
#[derive(Debug)]
pub struct Finding {
    pub input: Vec<u8>,
    pub message: String,
}

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    pub inputs: u64,
    /// Inputs with different behaviour.
    pub kinds: usize,
}

/// The inputs of a target that are in the source tree.
pub fn corpus(target: &Target) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    files.sort();
    files.into_iter().map(|path| fs::read(&path).map(|bytes| (path, bytes))).collect()
}

/// Runs a target on one input.
pub fn replay(target: &Target, input: &[u8]) -> Result<u64, Finding> {
    catch_unwind(AssertUnwindSafe(|| (target.run)(input))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let message = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Finding { input: input.to_vec(), message: message.unwrap_or_default() }
    })
}

/// Mutates the corpus until the limit, or until an input breaks the target. The same seed gives the same inputs.
pub fn drive(target: &Target, corpus: &[Vec<u8>], seed: u64, limit: Limit) -> Result<Report, Finding> {
    let (mut rng, started) = (StdRng::seed_from_u64(seed), Instant::now());
    let (mut pool, mut kinds): (Vec<Vec<u8>>, HashSet<u64>) = (corpus.to_vec(), HashSet::new());
    pool.push(Vec::new());
    for input in &pool {
        kinds.insert(replay(target, input)?);
    }
    let mut report = Report::default();
    loop {
        let is_over = match limit {
            Limit::Inputs(count) => report.inputs >= count,
            Limit::Time(time) => started.elapsed() >= time,
        };
        if is_over {
            return Ok(Report { kinds: kinds.len(), ..report });
        }
        let mut input = pool[rng.random_range(0..pool.len())].clone();
        mutate(&mut input, &pool, target.dictionary, &mut rng);
        input.truncate(MAX_INPUT_BYTES);
        report.inputs += 1;
        let kind = replay(target, &input)?;
        if pool.len() < MAX_POOL && kinds.insert(kind) {
            pool.push(input);
        }
    }
}
