//! Any file of objects is read without a crash, and what is read is possible.
#![no_main]

use libfuzzer_sys::fuzz_target;
use terrace_fuzz::file_of;
use terrace_trace::file::Decoder;
use terrace_trace::objects::{Event, MAGIC, Reader};

fuzz_target!(|bytes: &[u8]| {
    let file = file_of(&MAGIC, bytes);
    let Ok(reader) = Reader::of(&file[..]) else { return };
    let (mut decoder, mut events) = (Decoder::new(), Vec::new());
    for number in 0..reader.blocks() {
        let Ok(mut born) = reader.decode(number, &mut decoder, &mut events) else { return };
        for event in &events {
            match event {
                Event::Born { context, .. } => {
                    assert!((*context as usize) < reader.contexts().len());
                    born += 1;
                }
                Event::Died { object, .. }
                | Event::Resized { object, .. }
                | Event::Access { object, .. } => assert!(*object < born),
                Event::Counting { .. } => {}
            }
        }
    }
});
