//! A request on an open adapter: cut into jobs, laid out, run, and put together again.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use super::kernel::Open;
use super::layout::{ClassKey, prepare_float_row, prepare_row};
use super::plan::{Plan, Work};
use super::store::Resident;
use super::thread::{Done, Job};
use crate::kernel::KernelError;
use crate::kernel::batch::{self, ExactBatch, Slot};
use crate::kernel::experts::ExpertSource;
use crate::kernel::float_form::{self, FloatGroup};
use crate::wire::work::{Dispatch, Partials, RowStatus};

/// Longest submission that is planned: a desktop redraws between two of them.
const WAVE: Duration = Duration::from_millis(10);
/// Time of a tile until one was measured.
const TILE_NS_FIRST: u64 = 200_000;
/// Bytes of a job's largest buffer.
const JOB_BYTES_MAX: usize = 64 << 20;
/// Slots of a job.
const JOB_SLOTS_MAX: usize = 16_384;

/// How long a tile takes, as measured of late, to plan waves by.
pub(super) struct Pace(AtomicU64);

impl Default for Pace {
    fn default() -> Self {
        Self(AtomicU64::new(TILE_NS_FIRST))
    }
}

impl Pace {
    /// Follows a slower tile at once, because it may keep the desktop waiting, and a faster one by and by.
    fn note(&self, tiles: usize, wall: Duration) {
        let ns = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX) / (tiles as u64).max(1);
        let before = self.0.load(Relaxed);
        self.0.store(ns.max(before / 8 * 7 + ns / 8), Relaxed);
    }

    /// Tiles of a wave.
    fn wave_tiles(&self) -> usize {
        (WAVE.as_nanos() as u64 / self.0.load(Relaxed).max(1)).max(1) as usize
    }
}

/// The time of some jobs by the GPU's own clock: none when one of them was not timed.
struct Time(Option<Duration>);

impl Time {
    fn add(&mut self, done: &Done) {
        self.0 = self.0.zip(done.gpu_time).map(|(sum, time)| sum + time);
    }
}

impl Open {
    fn run(&self, plan: Plan, rows: Vec<u8>, timed: bool) -> Result<Done, KernelError> {
        let gone = || self.device.give_up("the thread that feeds it has ended");
        let tiles = plan.waves.iter().flat_map(|wave| &wave.launches).map(|launch| launch.tiles as usize).sum();
        let (reply, answer) = sync_channel(1);
        self.threads.send(Job { plan, rows, timed, reply }).ok_or_else(gone)?;
        let done = answer.recv().map_err(|_| gone())??;
        self.pace.note(tiles, done.wall);
        Ok(done)
    }

    fn plan(&self, key: ClassKey, rows: usize, works: Vec<Work<'_>>) -> Plan {
        let alignment = self.device.limits.min_storage_buffer_offset_alignment as usize;
        Plan::new(key, rows as u32, works, alignment, self.pace.wave_tiles())
    }

    /// Answers a request; with `timed`, also the time by the GPU's own clock, where it has one.
    pub fn compute(
        &self,
        experts: &dyn ExpertSource,
        layer: u16,
        parts: &[Dispatch],
        timed: bool,
    ) -> Result<(Vec<Partials>, Option<Duration>), KernelError> {
        let mut time = Time(timed.then_some(Duration::ZERO));
        if parts.first().is_some_and(Dispatch::is_float) {
            let forward = |groups: &[FloatGroup]| self.forward(groups, timed, &mut time);
            let replies = float_form::compute_with(experts, layer, parts, forward)?;
            return Ok((replies, time.0));
        }
        let batch = ExactBatch::new(experts, layer, parts, |id, expert| self.resident(id, expert))?;
        let hidden = batch.hidden;
        let mut sums = vec![0i32; batch.rows.len() * hidden];
        let mut status = vec![RowStatus::Ok; batch.rows.len()];
        // A job's experts share their shape. Which job adds what does not matter: integers are added.
        let keys: BTreeSet<ClassKey> = batch.groups.iter().map(|group| group.expert.chunk.key).collect();
        let rows_max = (JOB_BYTES_MAX / (4 * hidden.max(1))).max(1);
        let firsts = (0..batch.rows.len()).step_by(rows_max);
        for (key, first) in keys.iter().flat_map(|key| firsts.clone().map(move |first| (*key, first))) {
            let rows = first..(first + rows_max).min(batch.rows.len());
            for works in works(&batch, key, &rows) {
                let plan = self.plan(key, rows.len(), works);
                let mut prepared = Vec::with_capacity(rows.len() * key.row_bytes());
                batch.rows[rows.clone()].iter().for_each(|row| prepare_row(row.wire, &mut prepared));
                let done = self.run(plan, prepared, timed)?;
                time.add(&done);
                let (values, codes) = done.words.split_at(rows.len() * hidden);
                let own = &mut sums[rows.start * hidden..rows.end * hidden];
                own.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.wrapping_add(*value as i32));
                status[rows.clone()].iter_mut().zip(codes).for_each(|(status, code)| *status = worse(*status, *code));
            }
        }
        Ok((batch::into_parts(parts, &status, sums, hidden), time.0))
    }

    /// Outputs of float experts, group by group; every assignment brings its own row.
    fn forward(&self, groups: &[FloatGroup], timed: bool, time: &mut Time) -> Result<Vec<Vec<f32>>, KernelError> {
        let residents =
            groups.iter().map(|group| self.resident(group.id, &group.expert)).collect::<Result<Vec<_>, _>>()?;
        let mut outputs: Vec<Vec<f32>> = groups.iter().map(|group| vec![0.0; group.x.len()]).collect();
        let keys: BTreeSet<ClassKey> = residents.iter().map(|resident| resident.chunk.key).collect();
        for key in keys {
            let most = JOB_BYTES_MAX / (4 * key.hidden.max(key.intermediate));
            let own = (0..groups.len()).filter(|g| residents[*g].chunk.key == key);
            let all: Vec<(usize, usize)> =
                own.flat_map(|g| (0..groups[g].x.len() / key.hidden).map(move |row| (g, row))).collect();
            for job in all.chunks(most.clamp(1, JOB_SLOTS_MAX)) {
                let mut rows = Vec::with_capacity(job.len() * key.row_bytes());
                let elements = |row: usize| row * key.hidden..(row + 1) * key.hidden;
                job.iter().for_each(|(g, row)| prepare_float_row(&groups[*g].x[elements(*row)], &mut rows));
                let numbered = (0u32..).zip(job);
                let numbered: Vec<(u32, usize)> = numbered.map(|(number, (g, _))| (number, *g)).collect();
                let works = numbered.chunk_by(|a, b| a.1 == b.1).map(|own| Work {
                    resident: &residents[own[0].1],
                    slots: own.iter().map(|(number, _)| (*number, 0)).collect(),
                });
                let plan = self.plan(key, job.len(), works.collect());
                let order: Vec<u32> = plan.slots.iter().map(|[number, _]| *number).collect();
                let done = self.run(plan, rows, timed)?;
                time.add(&done);
                for (number, bits) in order.iter().zip(done.words.chunks_exact(key.hidden)) {
                    let (g, row) = job[*number as usize];
                    let own = &mut outputs[g][elements(row)];
                    own.iter_mut().zip(bits).for_each(|(out, bits)| *out = f32::from_bits(*bits));
                }
            }
        }
        Ok(outputs)
    }
}

/// The work of class `key` for `rows`, cut into jobs of bounded size; an expert with more than a job's slots fills
/// several.
fn works<'a>(batch: &'a ExactBatch<'_, Arc<Resident>>, key: ClassKey, rows: &Range<usize>) -> Vec<Vec<Work<'a>>> {
    let per_slot = key.inner_bytes().max(key.prepared_bytes()).max(1);
    let most = (JOB_BYTES_MAX / per_slot).clamp(1, JOB_SLOTS_MAX);
    let word = |slot: &Slot| {
        let grid = u32::from(batch.rows[slot.row].grid as u8);
        u32::from(slot.gate.mantissa) | u32::from(slot.gate.exponent as u8) << 16 | grid << 24
    };
    let (mut jobs, mut room) = (Vec::<Vec<Work<'a>>>::new(), 0);
    for group in batch.groups.iter().filter(|group| group.expert.chunk.key == key) {
        let own = group.slots.iter().filter(|slot| rows.contains(&slot.row));
        let slots: Vec<_> = own.map(|slot| ((slot.row - rows.start) as u32, word(slot))).collect();
        for slots in slots.chunks(most) {
            let work = Work { resident: &group.expert, slots: slots.to_vec() };
            match jobs.last_mut() {
                Some(job) if slots.len() <= room => {
                    room -= slots.len();
                    job.push(work);
                }
                _ => {
                    room = most - slots.len();
                    jobs.push(vec![work]);
                }
            }
        }
    }
    jobs
}

fn worse(status: RowStatus, code: u32) -> RowStatus {
    match (status, code) {
        (RowStatus::Poison, _) | (_, 2..) => RowStatus::Poison,
        (RowStatus::Range, _) | (_, 1) => RowStatus::Range,
        (RowStatus::Ok, 0) => RowStatus::Ok,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wave_takes_ten_milliseconds_at_most_at_the_pace_of_late() {
        let pace = Pace::default();
        let takes = |pace: &Pace| Duration::from_nanos(pace.0.load(Relaxed)) * pace.wave_tiles() as u32;
        assert!(takes(&pace) <= WAVE);
        for tile_us in [3, 40, 700, 5_000, 2, 9_999] {
            for _ in 0..100 {
                pace.note(64, Duration::from_micros(64 * tile_us));
                assert!(takes(&pace) <= WAVE, "{tile_us}");
            }
            assert!(pace.wave_tiles() as u64 * tile_us * 2 >= 10_000, "{tile_us}: and not much less");
        }
        // A tile is the least that can be submitted.
        pace.note(1, Duration::from_secs(1));
        assert_eq!(pace.wave_tiles(), 1);
    }
}
