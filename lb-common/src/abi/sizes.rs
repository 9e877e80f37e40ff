//! The size of every struct in a map: a change of one must not go unnoticed.

use super::*;

const _: () = {
    assert!(size_of::<Settings>() == 152);
    assert!(size_of::<ServiceKey>() == 20);
    assert!(size_of::<Service>() == 64);
    assert!(size_of::<Cursor>() == 64);
    assert!(size_of::<Member>() == 8);
    assert!(size_of::<Backend>() == 64);
    assert!(size_of::<PoolAddress>() == 64);
    assert!(size_of::<Live>() == 64);
    assert!(size_of::<ClassSums>() == 24);
    assert!(size_of::<Report>() == 304);
    assert!(size_of::<Traffic>() == 16);
    assert!(size_of::<Hop>() == 32);
    assert!(size_of::<HopKey>() == 24);
    assert!(size_of::<Way>() == 32);
    assert!(size_of::<Bucket4>() == 128);
    assert!(size_of::<Ends>() == 32);
    assert!(size_of::<Bucket6>() == 256);
    assert!(size_of::<Cold>() == 64);
    assert!(size_of::<ColdBucket>() == 256);
    assert!(size_of::<SpillKey>() == 16);
    assert!(size_of::<Spilled4>() == 96);
    assert!(size_of::<Spilled6>() == 128);
    assert!(size_of::<Name>() == 72);
    assert!(size_of::<Budget>() == 32);
    assert!(size_of::<Failure>() == 24);
    assert!(size_of::<SynGuard>() == 64);
};
