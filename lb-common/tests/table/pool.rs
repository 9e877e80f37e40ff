//! A service's backends on the heap: what the maps are to a pick.

use lb_common::abi::{Member, backend_flags};
use lb_common::admission::Admission;
use lb_common::atomic::Word;
use lb_common::pick::{Candidate, Pool};

pub(crate) const TAKES: u32 = backend_flags::PRESENT | backend_flags::UP;
pub(crate) const DOWN: u32 = backend_flags::PRESENT;

/// One backend. Its index is its position plus one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) flags: u32,
    pub(crate) weight: u32,
    pub(crate) relative: u32,
    pub(crate) live: u32,
    /// Its budget.
    pub(crate) admission: Admission,
    /// This flow may not go there.
    pub(crate) refused: bool,
}

impl Row {
    /// Up, idle, as fast as the best.
    pub(crate) const fn weight(weight: u32) -> Self {
        Self {
            flags: TAKES,
            weight,
            relative: 256,
            live: 0,
            admission: Admission::NONE,
            refused: false,
        }
    }
}

/// The published lists and the state of the backends.
pub(crate) struct HostPool {
    members: Vec<Member>,
    pub(crate) rows: Vec<Row>,
    cursor: Word,
    pub(crate) ring: Vec<u16>,
    turn: Word,
    /// Trial credits, by position.
    pub(crate) trials: Vec<Word>,
}

impl HostPool {
    /// A list of `rows` with their weights of this moment, whose slot 0 is
    /// cursor value `base`.
    pub(crate) fn new(rows: Vec<Row>, base: u64) -> Self {
        let mut members = vec![Member::header(base)];
        let mut prefix = 0;
        for (position, row) in rows.iter().enumerate() {
            prefix += row.weight;
            members.push(Member {
                prefix,
                backend: position as u16 + 1,
                padding: 0,
            });
        }
        Self {
            members,
            trials: rows.iter().map(|_| Word::new(0)).collect(),
            rows,
            cursor: Word::new(base),
            ring: Vec::new(),
            turn: Word::new(0),
        }
    }

    fn row(&self, backend: u16) -> Option<&Row> {
        self.rows.get(usize::from(backend).checked_sub(1)?)
    }
}

impl Pool for HostPool {
    fn member(&self, index: u32) -> Option<Member> {
        self.members.get(index as usize).copied()
    }
    fn members(&self) -> u32 {
        self.members.len() as u32 - 1
    }
    fn advance(&self, by: u64) -> u64 {
        self.cursor.add(by)
    }
    fn next_ring_slot(&self) -> Option<u16> {
        let turn = self.turn.add(1);
        let slot = turn.checked_rem(self.ring.len() as u64)?;
        Some(self.ring[slot as usize])
    }
    fn candidate(&self, backend: u16) -> Option<Candidate> {
        let row = self.row(backend)?;
        Some(Candidate {
            flags: row.flags,
            weight: row.weight,
            relative: row.relative,
            live: row.live,
            admission: row.admission,
            trial: self.trials[usize::from(backend) - 1].load() != 0,
        })
    }
    fn is_refused(&self, backend: u16) -> bool {
        self.row(backend).is_none_or(|row| row.refused)
    }
    fn take_trial(&self, backend: u16) -> bool {
        self.trials[usize::from(backend) - 1].replace(1, 0)
    }
    fn each<V: FnMut(u32) -> bool>(&self, count: u32, mut visit: V) {
        let _ = (0..count).all(&mut visit);
    }
}
