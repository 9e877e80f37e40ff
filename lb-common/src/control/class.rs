//! Flows are measured in two size classes, short and long (spec 1.2).

use serde::{Deserialize, Serialize};

/// Size class of a flow, by the bytes of both directions (spec 1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeClass {
    /// Below `short_flow_bytes`.
    Short,
    /// `short_flow_bytes` and more.
    Long,
}

impl SizeClass {
    /// Both classes.
    pub const ALL: [Self; 2] = [Self::Short, Self::Long];
}

/// One value per size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PerClass<T: Default> {
    /// Of flows below `short_flow_bytes`.
    pub short: T,
    /// Of flows of `short_flow_bytes` and more.
    pub long: T,
}

impl<T: Copy + Default> PerClass<T> {
    /// The value made by `f` for each class.
    pub fn from_fn(mut f: impl FnMut(SizeClass) -> T) -> Self {
        Self {
            short: f(SizeClass::Short),
            long: f(SizeClass::Long),
        }
    }

    /// The value of one class.
    pub fn get(&self, class: SizeClass) -> T {
        match class {
            SizeClass::Short => self.short,
            SizeClass::Long => self.long,
        }
    }

    /// The value of one class, to be changed.
    pub fn get_mut(&mut self, class: SizeClass) -> &mut T {
        match class {
            SizeClass::Short => &mut self.short,
            SizeClass::Long => &mut self.long,
        }
    }
}
