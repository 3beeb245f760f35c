//! What a codec is given to decompress may be anything: an error or a page, nothing else.
#![no_main]
use libfuzzer_sys::fuzz_target;
use terrace_tiers::codec::{CODECS, codec_for};
use terrace_tiers::{PAGE_BYTES, Scratch};

fuzz_target!(|data: &[u8]| {
    let Some((which, bytes)) = data.split_first() else { return };
    let row = &CODECS[usize::from(*which) % CODECS.len()];
    let codec = codec_for((row.kind)(row.levels.as_ref().map_or(0, |levels| levels.default)));
    let (mut scratch, mut page) = (Scratch::new(), [0; PAGE_BYTES]);
    if codec.decompress(bytes, &mut page, &mut scratch).is_err() {
        return;
    }
    let again = codec.compress(&page, &mut scratch, PAGE_BYTES).map(<[u8]>::to_vec);
    if let Some(again) = again {
        let mut back = [0xEE; PAGE_BYTES];
        assert_eq!(codec.decompress(&again, &mut back, &mut scratch), Ok(()));
        assert!(back == page);
    }
});
