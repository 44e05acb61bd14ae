//! A batch, laid out for the kernels: prepared rows, slots sorted by expert, tiles, and waves of launches.
//!
//! A slot is one (row, expert) pair, a tile an expert and up to 16 of its slots, a launch all tiles of one chunk and
//! size, a wave what is submitted at once. **Promise:** every index that a shader will read is inside its buffer: rows
//! and slots are counted here, starts of experts come from the store. This is what makes unchecked shaders sound.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::compose::TileRows;
use super::layout::ClassKey;
use super::store::{Chunk, Resident};

/// Bytes of a tile.
const TILE_BYTES: usize = 16;
/// Tiles of a launch at most.
const LAUNCH_TILES_MAX: usize = 1024;
/// The part of the tile buffer that a launch sees.
pub(super) const WINDOW_BYTES: u64 = (LAUNCH_TILES_MAX * TILE_BYTES) as u64;

/// The slots of one expert.
pub(super) struct Work<'a> {
    pub resident: &'a Resident,
    /// Row, and the word that the kernels read beside it (gate weight and grid).
    pub slots: Vec<(u32, u32)>,
}

/// All tiles of one chunk and size.
pub(super) struct Launch {
    pub chunk: Arc<Chunk>,
    pub tile: TileRows,
    /// Where its tiles begin in the tile buffer, in bytes.
    pub tiles_at: u32,
    pub tiles: u32,
}

/// What is submitted at once.
pub(super) struct Wave {
    pub launches: Vec<Launch>,
    /// Its slots.
    pub slots: Range<u32>,
    /// Where its record for the quantiser begins in the tile buffer, in bytes.
    pub record_at: u32,
}

/// A job for the GPU.
pub(super) struct Plan {
    pub key: ClassKey,
    pub rows: u32,
    /// Row and word of every slot.
    pub slots: Vec<[u32; 2]>,
    /// The tile buffer.
    pub tiles: Vec<u8>,
    pub waves: Vec<Wave>,
}

impl Plan {
    /// Lays out the `works` of `rows` rows; tiles of a launch begin at multiples of `alignment` bytes, and a wave has
    /// at most `wave_tiles` tiles.
    pub fn new(key: ClassKey, rows: u32, mut works: Vec<Work<'_>>, alignment: usize, wave_tiles: usize) -> Self {
        works.sort_by_key(|work| (work.resident.chunk.number, work.resident.start()));
        let mut plan = Self { key, rows, slots: Vec::new(), tiles: Vec::new(), waves: Vec::new() };
        let tiles = works
            .iter()
            .flat_map(|work| work.slots.chunks(TileRows::Sixteen.count() as usize).map(|slots| (work.resident, slots)));
        let tiles: Vec<_> = tiles.collect();
        tiles.chunks(wave_tiles.max(1)).for_each(|wave| plan.add_wave(wave, alignment));
        plan
    }

    fn add_wave(&mut self, tiles: &[(&Resident, &[(u32, u32)])], alignment: usize) {
        let first = self.slots.len() as u32;
        let mut launches = BTreeMap::<(u64, TileRows), (Arc<Chunk>, Vec<[u32; 4]>)>::new();
        for (resident, slots) in tiles {
            let (chunk, tile) = (&resident.chunk, TileRows::holding(slots.len()));
            let launch = launches.entry((chunk.number, tile)).or_insert_with(|| (Arc::clone(chunk), Vec::new()));
            launch.1.push([resident.start(), self.slots.len() as u32, slots.len() as u32, 0]);
            self.slots.extend(slots.iter().map(|(row, word)| [*row, *word]));
        }
        let slots = first..self.slots.len() as u32;
        let record_at = self.add_tiles(&[[0, slots.start, slots.end - slots.start, 0]], alignment);
        let mut cut = Vec::new();
        for ((_, tile), (chunk, tiles)) in launches {
            for tiles in tiles.chunks(LAUNCH_TILES_MAX) {
                let tiles_at = self.add_tiles(tiles, alignment);
                cut.push(Launch { chunk: Arc::clone(&chunk), tile, tiles_at, tiles: tiles.len() as u32 });
            }
        }
        self.waves.push(Wave { launches: cut, slots, record_at });
    }

    fn add_tiles(&mut self, tiles: &[[u32; 4]], alignment: usize) -> u32 {
        self.tiles.resize(self.tiles.len().next_multiple_of(alignment.max(TILE_BYTES)), 0);
        let at = self.tiles.len() as u32;
        self.tiles.extend(tiles.iter().flatten().flat_map(|word| word.to_le_bytes()));
        at
    }
}
