//! Loading and storing fields of headers whose place in the frame is proved.

/// Loads a network-order field. BPF loads need no alignment on the machines
/// that Steerline runs on (`CONFIG_HAVE_EFFICIENT_UNALIGNED_ACCESS`).
macro_rules! field {
    ($header:expr, $type:ident . $field:ident as u16) => {
        // SAFETY: `at` proved that the header lies in the frame.
        u16::from_be(unsafe {
            $header
                .cast::<u8>()
                .add(offset_of!($type, $field))
                .cast::<u16>()
                .read_volatile()
        })
    };
    ($header:expr, $type:ident . $field:ident as u32) => {
        // SAFETY: as above.
        u32::from_be(unsafe {
            $header
                .cast::<u8>()
                .add(offset_of!($type, $field))
                .cast::<u32>()
                .read_volatile()
        })
    };
    ($header:expr, $type:ident . $field:ident as u8) => {
        // SAFETY: as above.
        unsafe {
            $header
                .cast::<u8>()
                .add(offset_of!($type, $field))
                .read_volatile()
        }
    };
}

/// Stores a network-order field.
macro_rules! put {
    ($header:expr, $type:ident . $field:ident as $int:ident, $value:expr) => {
        // SAFETY: `at` proved that the header lies in the frame.
        unsafe {
            $header
                .cast::<u8>()
                .add(offset_of!($type, $field))
                .cast::<$int>()
                .write_volatile(<$int>::to_be($value))
        }
    };
}
