//! A list of tiers is parsed as the design says, or refused with the cause and the remedy.

use proptest::prelude::*;
use terrace_tiers::{AUTO, CodecKind, MediumKind, PoolKind, SpecError, TierKind, parse_tiers};

fn compressed(codec: CodecKind) -> TierKind {
    TierKind::Compressed { codec, pool: PoolKind::Extent, medium: MediumKind::Dram }
}

fn refusal(list: &str) -> String {
    parse_tiers(list).unwrap_err().to_string()
}

#[test]
fn good_lists() {
    let tiers = parse_tiers(" dram, lz4 ,zstd:1/extent@dram,zstd:-5@dram,zstd:19/extent").unwrap();
    let zstd = |level| compressed(CodecKind::Zstd { level });
    let kinds: Vec<TierKind> = tiers.iter().map(|tier| tier.kind.clone()).collect();
    assert_eq!(kinds, [TierKind::Dram, compressed(CodecKind::Lz4), zstd(1), zstd(-5), zstd(19)]);
    let names: Vec<&str> = tiers.iter().map(|tier| tier.name.as_str()).collect();
    assert_eq!(names, ["dram", "lz4", "zstd:1/extent@dram", "zstd:-5@dram", "zstd:19/extent"]);
    assert_eq!(parse_tiers("dram").unwrap().len(), 1);
    assert_eq!(parse_tiers("dram,zstd").unwrap()[1].kind.clone(), zstd(1));
    assert_eq!(parse_tiers("dram,lz4,zstd:1,zstd:2,zstd:3,zstd:4,zstd:5,zstd:6").unwrap().len(), 8);
}

#[test]
fn lists_of_the_wrong_shape() {
    for list in ["", ",", "dram,", "dram,,lz4", " "] {
        assert!(matches!(parse_tiers(list), Err(SpecError::Empty { .. })), "{list}");
    }
    assert!(refusal("lz4,dram").contains("write dram first, such as dram,lz4"));
    assert!(refusal("lz4").contains("such as dram,lz4"));
    assert!(refusal("dram,zstd,zstd:1@dram").contains("`zstd:1@dram` is the same tier as `zstd`"));
    assert!(matches!(parse_tiers("dram,dram"), Err(SpecError::Duplicate { .. })));
    let nine = "dram,lz4,zstd:1,zstd:2,zstd:3,zstd:4,zstd:5,zstd:6,zstd:7";
    assert!(matches!(parse_tiers(nine), Err(SpecError::TooMany { count: 9 })));
}

#[test]
fn what_is_designed_but_not_built() {
    for (tier, part, word) in [
        ("lzo-rle", "codec", "lzo-rle"),
        ("zlib:6", "codec", "zlib"),
        ("zstd/z3fold", "pool", "z3fold"),
    ] {
        match parse_tiers(&format!("dram,{tier}")) {
            Err(SpecError::NotBuilt { part: got_part, word: got_word, .. }) => {
                assert_eq!((got_part, got_word.as_str()), (part, word));
            }
            other => panic!("{tier}: {other:?}"),
        }
        assert!(refusal(&format!("dram,{tier}")).contains("there "), "{tier}: says what there is");
    }
}

#[test]
fn codecs_pools_and_media_go_together_in_every_way() {
    let zstd = CodecKind::Zstd { level: 3 };
    let codecs = [("lz4", CodecKind::Lz4), ("zstd:3", zstd), ("lzo", CodecKind::Lzo)];
    let deflate = ("deflate", CodecKind::Deflate { level: 6 });
    let pools =
        [("extent", PoolKind::Extent), ("zsmalloc", PoolKind::Zsmalloc), ("zbud", PoolKind::Zbud)];
    let file = MediumKind::File { directory: "/var/tmp".to_owned() };
    let media = [
        ("dram", MediumKind::Dram),
        ("node:1", MediumKind::Node { node: 1 }),
        ("file:/var/tmp", file),
    ];
    for (codec_text, codec) in codecs.into_iter().chain([deflate]) {
        for (pool_text, pool) in pools {
            for (medium_text, medium) in media.clone() {
                let tier = format!("{codec_text}/{pool_text}@{medium_text}");
                let found = parse_tiers(&format!("dram,{tier}")).unwrap().remove(1);
                assert_eq!(found.name, tier);
                assert_eq!(found.kind, TierKind::Compressed { codec, pool, medium });
            }
        }
    }
    assert!(parse_tiers("dram,raw@file:/var/tmp").is_ok());
    assert!(refusal("dram,raw").contains("write raw@file:/DIRECTORY"));
    assert!(refusal("dram,lz4@node").contains("such as node:1"));
}

#[test]
fn lists_have_names() {
    let tiers = parse_tiers(" tierscape-spectrum ").unwrap();
    let names: Vec<&str> = tiers.iter().map(|tier| tier.name.as_str()).collect();
    assert_eq!(names[..2], ["dram", "lz4/zbud@dram"]);
    assert_eq!(names.len(), 6);
    assert!(
        refusal("dram,gswap").contains("the lists tierscape-standard"),
        "{}",
        refusal("dram,gswap")
    );
    assert!(refusal("tierscape").contains("tierscape-spectrum"));
}

#[test]
fn slips_get_the_word_that_was_meant() {
    for (tier, meant) in [
        ("lz5", "lz4"),
        ("ztsd:3", "zstd"),
        ("LZ4", ""),
        ("drm", "dram"),
        ("swp", "swap"),
        ("lz4/extents", "extent"),
        ("lz4/zmalloc", "zsmalloc"),
        ("lz4@dran", "dram"),
        ("lz4@dram:1", "dram"),
        ("gzip", ""),
        ("lz4/", ""),
        ("lz4@", ""),
        ("/extent", ""),
    ] {
        let text = refusal(&format!("dram,{tier}"));
        match meant {
            "" => assert!(!text.contains("did you mean"), "{text}"),
            meant => assert!(text.contains(&format!("did you mean `{meant}`?")), "{text}"),
        }
    }
}

#[test]
fn directories_of_files() {
    let medium = |tier: &str| match parse_tiers(&format!("dram,{tier}")).unwrap().remove(1).kind {
        TierKind::Compressed { medium, .. } => medium,
        _ => panic!("{tier} is no such tier"),
    };
    let directory = |directory: &str| MediumKind::File { directory: directory.to_owned() };
    assert_eq!(medium("lz4@file:/var/tmp"), directory("/var/tmp"));
    assert_eq!(medium("lz4/extent@file:/a@b:c/d e//"), directory("/a@b:c/d e"));
    assert_eq!(medium("zstd:3@file:/"), directory("/"));
    assert_eq!(parse_tiers("dram,lz4,lz4@file:/a,lz4@file:/b,zstd@file:/a").unwrap().len(), 5);
    assert!(matches!(
        parse_tiers("dram,lz4@file:/a,lz4/extent@file:/a/"),
        Err(SpecError::Duplicate { .. })
    ));
    for tier in ["lz4@file", "lz4@file:", "lz4@file:tmp", "lz4@file:./tmp", "lz4@file:/a\0b"] {
        assert!(refusal(&format!("dram,{tier}")).contains("such as lz4@file:/var/tmp"), "{tier}");
    }
    let cut = refusal("dram,lz4@file:/a,b,zstd");
    assert!(
        cut.contains("there is no codec `b`") && cut.contains("cannot contain a comma"),
        "{cut}"
    );
    assert!(refusal("dram,lz4@fil").contains("did you mean `file`?"));
}

#[test]
fn the_kernels_swap_is_one_tier() {
    let kinds = |list: &str| {
        parse_tiers(list).unwrap().into_iter().map(|tier| tier.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds("dram,swap"), [TierKind::Dram, TierKind::Swap]);
    assert_eq!(kinds("dram,lz4,swap")[2], TierKind::Swap);
    assert!(matches!(parse_tiers("dram,swap,lz4,swap"), Err(SpecError::Duplicate { .. })));
    assert!(matches!(parse_tiers("swap"), Err(SpecError::DramNotFirst { .. })));
    for tier in ["swap:1", "swap/extent", "swap@dram", "lz4@swap"] {
        assert!(parse_tiers(&format!("dram,{tier}")).is_err(), "{tier}");
    }
}

#[test]
fn one_node_right_behind_dram() {
    for list in ["dram,node:1", " dram , node:1 , zstd"] {
        assert_eq!(parse_tiers(list).unwrap()[1].kind, TierKind::Node { node: 1 }, "{list}");
    }
    for tier in ["node", "node:", "node:x", "node:-1", "node:1@dram", "node:1/extent"] {
        assert!(refusal(&format!("dram,{tier}")).contains("such as node:1"), "{tier}");
    }
    assert!(refusal("dram,zstd,node:1").contains("write it right behind dram"));
    assert!(refusal("dram,node:1,node:2").contains("`node:1` is one already"));
    assert!(matches!(parse_tiers("dram,node:1,node:1"), Err(SpecError::Duplicate { .. })));
    assert!(matches!(parse_tiers("node:0,dram"), Err(SpecError::DramNotFirst { .. })));
    assert!(refusal("dram,nod:1").contains("did you mean `node`?"));
}

#[test]
fn auto_is_a_list_of_its_own() {
    assert_eq!(parse_tiers(" auto "), parse_tiers(AUTO));
    assert!(refusal("dram,auto").contains("auto alone"), "{}", refusal("dram,auto"));
}

#[test]
fn levels_are_checked() {
    for tier in ["zstd:0", "zstd:20", "zstd:-6", "zstd:x", "zstd:", "zstd:1.5", "zstd:99999999999"]
    {
        assert!(refusal(&format!("dram,{tier}")).contains("write -5 to 19"), "{tier}");
    }
    assert!(refusal("dram,lz4:9").contains("lz4 has none"));
    assert!(refusal("dram,lzo:1").contains("lzo has none"));
    for tier in ["deflate:0", "deflate:10", "deflate:-1", "deflate:"] {
        assert!(refusal(&format!("dram,{tier}")).contains("write 1 to 9"), "{tier}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, ..ProptestConfig::with_cases(512)
    })]

    /// Any text is a list that reads back from the tiers' names, or is refused in a line that says
    /// why.
    #[test]
    fn any_text_is_tiers_or_a_reason(
        text in prop_oneof![
            any::<String>(),
            prop::collection::vec(
                prop::sample::select(
                    &[
                        "dram", "lz4", "zstd", ":", "1", "-5", "19", "/", "extent", "zbud", "lzo",
                        "deflate", "raw", "@", "node", "swap", "auto", ",", "dram,", " ", "é",
                    ][..],
                ),
                0..12,
            )
                .prop_map(|parts| parts.concat()),
        ],
    ) {
        match parse_tiers(&text) {
            Ok(tiers) => {
                prop_assert_eq!(&tiers[0].kind, &TierKind::Dram);
                let names: Vec<&str> = tiers.iter().map(|tier| tier.name.as_str()).collect();
                prop_assert_eq!(parse_tiers(&names.join(",")), Ok(tiers.clone()));
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
