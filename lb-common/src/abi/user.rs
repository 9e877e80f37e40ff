//! Lets aya copy these structs out of maps.
macro_rules! pod {
    ($($name:ident),* $(,)?) => {
        $(
            // SAFETY: the struct is `repr(C)` and `bytemuck::Pod`: any bit
            // pattern is a value and no byte of it is padding.
            unsafe impl aya::Pod for super::$name {}
        )*
    };
}
pod!(
    Settings,
    ServiceKey,
    Service,
    Cursor,
    Member,
    Backend,
    Live,
    Report,
    Traffic,
    Hop,
    HopKey,
    Bucket4,
    ColdBucket,
    SpillKey,
    Spilled4,
    Bucket6,
    Spilled6,
    PoolAddress,
    Name,
    Budget,
    Failure,
    SynGuard,
);
