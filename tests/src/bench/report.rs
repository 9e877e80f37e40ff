//! What was measured, as a table and as JSON.

use super::{
    case::Case,
    floors::Contender,
    measure::{Options, Size},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt};

/// The samples of one program in one case, in the order of rounds.
pub type Samples = BTreeMap<Contender, Vec<f64>>;

/// One case.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which.
    pub case: Case,
    /// Packets of one timed run.
    pub repeats: u32,
    /// Nanoseconds per packet, the restoring program's included.
    pub samples: Samples,
}

/// Of several numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle one; of an even number the mean of the middle two.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// `None` of nothing.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut numbers: Vec<f64> = numbers.into_iter().collect();
        numbers.sort_by(f64::total_cmp);
        let (min, max) = (*numbers.first()?, *numbers.last()?);
        let middle = numbers.len() / 2;
        let median = if numbers.len().is_multiple_of(2) {
            (numbers[middle - 1] + numbers[middle]) / 2.0
        } else {
            numbers[middle]
        };
        Some(Self { median, min, max })
    }

    fn json(self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}

impl Row {
    /// Nanoseconds per packet beyond an empty program, by rounds.
    fn beyond(&self, contender: Contender) -> Vec<f64> {
        let (Some(all), Some(empty)) = (
            self.samples.get(&contender),
            self.samples.get(&Contender::Empty),
        ) else {
            return Vec::new();
        };
        all.iter()
            .zip(empty)
            .map(|(all, empty)| all - empty)
            .collect()
    }

    /// Nanoseconds per packet beyond an empty program.
    pub fn cost(&self, contender: Contender) -> Option<Spread> {
        Spread::of(self.beyond(contender))
    }

    /// Steerline's cost divided by that of another program in the same round.
    pub fn ratio(&self, to: Contender) -> Option<Spread> {
        let (ours, theirs) = (self.beyond(Contender::Steerline), self.beyond(to));
        Spread::of(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs))
    }

    /// Whether the target was reached, if there is one and it was measured.
    pub fn meets_target(&self) -> Option<bool> {
        Some(self.ratio(Contender::Lru)?.median <= self.case.target()?)
    }

    fn json(&self) -> Value {
        let programs: serde_json::Map<String, Value> = self
            .samples
            .iter()
            .map(|(contender, samples)| {
                let value = json!({
                    "ns_with_restore": samples,
                    "ns": self.cost(*contender).map(Spread::json),
                });
                (contender.name().to_owned(), value)
            })
            .collect();
        json!({
            "case": self.case.to_string(),
            "flows": self.case.flows,
            "repeats": self.repeats,
            "programs": programs,
            "ratio_to_lru": self.ratio(Contender::Lru).map(Spread::json),
            "ratio_to_hash": self.ratio(Contender::Hash).map(Spread::json),
            "target": self.case.target(),
            "met": self.meets_target(),
        })
    }
}

/// Everything.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order in which it was measured.
    pub rows: Vec<Row>,
    runs: u32,
    size: Size,
}

impl Report {
    /// Nothing yet.
    pub fn new(options: &Options) -> Self {
        Self {
            rows: Vec::new(),
            runs: options.runs,
            size: options.size,
        }
    }

    /// Everything, with each single run.
    pub fn json(&self) -> Value {
        json!({
            "runs": self.runs,
            "live_flows": self.size.live,
            "capacity": self.size.capacity(),
            "new_flows": self.size.new,
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "ns per packet beyond an empty program: median of {} runs (least–most); {} of {} flows \
             in the table",
            self.runs,
            self.size.live,
            self.size.capacity()
        )?;
        writeln!(
            f,
            "{:<28} {:>7} {:>9} {:>9} {:>9} {:>21} {:>17} {:>7}",
            "", "flows", "mac swap", "hash", "lru hash", "steerline", "ratio to lru", "target"
        )?;
        for row in &self.rows {
            let median = |contender| {
                let cost = row.cost(contender);
                cost.map_or_else(|| "-".to_owned(), |cost| format!("{:.1}", cost.median))
            };
            let spread = |spread: Option<Spread>, digits: usize| {
                spread.map_or_else(
                    || "-".to_owned(),
                    |Spread { median, min, max }| {
                        format!("{median:.digits$} ({min:.digits$}–{max:.digits$})")
                    },
                )
            };
            let verdict = match (row.case.target(), row.meets_target()) {
                (Some(target), Some(true)) => format!("{target} met"),
                (Some(target), Some(false)) => format!("{target} MISSED"),
                (Some(target), None) => target.to_string(),
                (None, _) => String::new(),
            };
            let flows = match row.case.flows {
                0 => "each".to_owned(),
                flows => flows.to_string(),
            };
            writeln!(
                f,
                "{:<28} {:>7} {:>9} {:>9} {:>9} {:>21} {:>17} {}",
                row.case.to_string(),
                flows,
                median(Contender::MacSwap),
                median(Contender::Hash),
                median(Contender::Lru),
                spread(row.cost(Contender::Steerline), 1),
                spread(row.ratio(Contender::Lru), 2),
                verdict,
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        bench::{Mode, Protocol, Site, Subject},
        packets::Family,
    };

    #[test]
    fn the_middle_of_numbers() {
        type Row = (&'static [f64], Option<(f64, f64, f64)>);
        let rows: [Row; 4] = [
            (&[], None),
            (&[3.0], Some((3.0, 3.0, 3.0))),
            (&[9.0, 1.0, 2.0], Some((2.0, 1.0, 9.0))),
            (&[4.0, 1.0, 2.0, 9.0], Some((3.0, 1.0, 9.0))),
        ];
        for (numbers, expected) in rows {
            let spread = Spread::of(numbers.iter().copied());
            let got = spread.map(|s| (s.median, s.min, s.max));
            assert_eq!(got, expected, "{numbers:?}");
        }
    }

    #[test]
    fn costs_and_ratios_are_of_the_same_round() {
        let case = |flows| Case {
            site: Site {
                family: Family::V4,
                mode: Mode::Dsr,
                protocol: Protocol::Tcp,
            },
            subject: Subject::ToServer,
            flows,
        };
        let samples = BTreeMap::from([
            (Contender::Empty, vec![10.0, 20.0, 10.0]),
            (Contender::Lru, vec![110.0, 120.0, 210.0]),
            (Contender::Steerline, vec![60.0, 40.0, 70.0]),
        ]);
        let row = |flows| Row {
            case: case(flows),
            repeats: 1,
            samples: samples.clone(),
        };
        let spread = |median, min, max| Some(Spread { median, min, max });
        assert_eq!(row(1).cost(Contender::Steerline), spread(50.0, 20.0, 60.0));
        assert_eq!(row(1).ratio(Contender::Lru), spread(0.3, 0.2, 0.5));
        assert_eq!(row(1).ratio(Contender::Hash), None);
        let verdicts = [1, 1_024, 65_536, 524_288].map(|flows| row(flows).meets_target());
        assert_eq!(verdicts, [None, Some(true), None, Some(true)]);
    }
}
