//! One tier: its codec, its medium and its statistics, and the choice of how each page is kept.
//!
//! A page is a pattern if it repeats 8 bytes, coded if that saves enough, raw otherwise. Where the
//! bytes go is the pool's business.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::codec::{Codec, CodecError, Scratch, codec_for, prefetch};
use crate::encode::{self, Checksum, Encoded, Encoding, checksum};
use crate::file::FileMedium;
use crate::medium::Medium;
use crate::node::Node;
use crate::page::{PAGE_BYTES, Page};
use crate::slots::SlotPool;
use crate::spec::{MediumKind, TierKind, TierSpec};
use crate::stats::TierStats;
use crate::swap::Swap;

/// A page that compression would not shrink by this many bytes is kept raw: it is restored by a
/// copy, a few times faster.
pub const REJECT_MARGIN: usize = 64;

/// Bytes of the pattern that stands for a same-filled page.
const PATTERN_BYTES: usize = 8;

/// A place for pages.
pub struct Tier {
    /// What the user asked for.
    pub spec: TierSpec,
    /// What the tier holds and has done.
    pub stats: TierStats,
    codec: Option<Arc<dyn Codec>>,
    backing: Backing,
    slots: Option<Arc<SlotPool>>,
    disabled: AtomicBool,
}

/// What is under a tier's pool.
#[derive(Clone)]
pub enum Backing {
    /// Memory.
    Memory(Arc<dyn Medium>),
    /// Files.
    File(Arc<FileMedium>),
    /// Nothing of ours: pages stay in the page table, in memory of that node.
    Node(Arc<Node>),
    /// Nothing of ours: the kernel has the pages.
    Swap(Arc<Swap>),
}

/// Why stored bytes do not give a page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A pattern or a raw page has a wrong length.
    #[error(
        "{got} bytes are stored for a page kept as {encoding:?}, which takes {want}: \
         its location is wrong or was overwritten"
    )]
    Length {
        /// The form that the page is said to have.
        encoding: Encoding,
        /// Number of bytes there are.
        got: usize,
        /// Number of bytes there must be.
        want: usize,
    },
    /// A coded page in a tier that has no codec.
    #[error(
        "tier `{tier}` does not compress, so it holds no coded page: decode with the tier the page was stored in"
    )]
    NoCodec {
        /// The tier's name.
        tier: String,
    },
    /// The codec could not read the bytes.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The codec made a page of the bytes, but not the one that was stored.
    #[error(
        "its checksum is {got:032x} and was {want:032x} when it was stored: \
         the stored bytes were damaged, or the codec made a mistake; the page is lost"
    )]
    Checksum {
        /// The checksum of the page that was decoded.
        got: Checksum,
        /// Checksum that was stored with the page.
        want: Checksum,
    },
}

impl DecodeError {
    /// Whether only memory was missing: the page is as good as before, and another attempt may
    /// succeed.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, DecodeError::Codec(CodecError::NoContext { .. }))
    }
}

/// What [`Tier::measure`] found.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Encoded bytes of the page.
    pub bytes: usize,
    /// Time to encode the page, ns.
    pub encode_ns: u64,
    /// Time to decode the page, ns.
    pub decode_ns: u64,
}

impl Tier {
    /// A tier with nothing in it. Tiers of one kind of medium share it. DRAM as a tier has no codec
    /// and no pool; its medium is not used.
    pub fn new(spec: TierSpec, medium: Arc<dyn Medium>) -> Self {
        Tier::over(spec, Backing::Memory(medium))
    }

    /// A tier whose pool is in files. No other tier shares them.
    pub fn in_files(spec: TierSpec, files: FileMedium) -> Self {
        Tier::over(spec, Backing::File(Arc::new(files)))
    }

    /// A tier whose pages the kernel keeps in its swap. Nothing is encoded for it or stored in it;
    /// how many pages are there is what its [statistics](TierStats::set_held) are told.
    pub fn in_swap(spec: TierSpec) -> Self {
        Tier::over(spec, Backing::Swap(Arc::default()))
    }

    /// A tier whose pages are in memory of another node. As with [`Tier::in_swap`], nothing is
    /// encoded for it or stored in it.
    pub fn in_node(spec: TierSpec, node: Node) -> Self {
        Tier::over(spec, Backing::Node(Arc::new(node)))
    }

    fn over(spec: TierSpec, backing: Backing) -> Self {
        // Drawing it takes a system call, which a program may give up later.
        encode::key();
        let codec = spec.codec().map(|kind| codec_for(kind).into());
        let slots = match &spec.kind {
            TierKind::Compressed { pool, .. } => SlotPool::new(*pool, &backing).map(Arc::new),
            _ => None,
        };
        let disabled = AtomicBool::new(false);
        Tier { spec, stats: TierStats::new(), codec, backing, slots, disabled }
    }

    /// Gives the tier another codec than its specification names, such as one that a test wrote.
    pub fn with_codec(self, codec: Box<dyn Codec>) -> Self {
        Tier { codec: Some(codec.into()), ..self }
    }

    /// Gives tiers that compress alike one codec, so that what one has stored is what another would
    /// store, dictionaries included: see [`Tier::reads`].
    pub fn share_codecs(tiers: &mut [Tier]) {
        for index in 1..tiers.len() {
            let (earlier, rest) = tiers.split_at_mut(index);
            let Some(wanted) = rest[0].spec.codec() else { continue };
            if let Some(same) = earlier.iter().find(|tier| tier.spec.codec() == Some(wanted)) {
                rest[0].codec = same.codec.clone();
            }
        }
    }

    /// Says that the tier takes no more pages from now on, or takes some again. What is in it
    /// stays.
    pub fn set_disabled(&self, disabled: bool) {
        self.disabled.store(disabled, Relaxed);
        if let Some(swap) = self.swap() {
            swap.set_disabled(disabled);
        }
    }

    /// Whether the tier takes no more pages.
    pub fn is_disabled(&self) -> bool {
        self.disabled.load(Relaxed)
    }

    /// Whether what `other` has stored can be kept here as it is: both have one codec.
    pub fn reads(&self, other: &Tier) -> bool {
        match (&self.codec, &other.codec) {
            (Some(own), Some(others)) => Arc::ptr_eq(own, others),
            _ => false,
        }
    }

    /// The node whose memory is under the tier's pool; `None` if it is not a node's.
    pub fn pool_node(&self) -> Option<u32> {
        match &self.spec.kind {
            TierKind::Compressed { medium: MediumKind::Node { node }, .. } => Some(*node),
            _ => None,
        }
    }

    /// Bytes of anonymous memory of this process that another node has.
    pub fn far_pool_bytes(&self) -> u64 {
        if self.pool_node().is_some() { self.stats.physical_bytes() } else { 0 }
    }

    /// Whether pages go through a codec and a pool here.
    pub fn is_compressed(&self) -> bool {
        self.codec.is_some()
    }

    /// What is under the tier's pool.
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// The pool that all regions share; `None` for a pool of another kind.
    pub(crate) fn slots(&self) -> Option<&Arc<SlotPool>> {
        self.slots.as_ref()
    }

    /// The files under the tier's pool, if it is in files.
    pub fn files(&self) -> Option<&Arc<FileMedium>> {
        match &self.backing {
            Backing::File(files) => Some(files),
            _ => None,
        }
    }

    /// Whether a pool of ours keeps what is here (DRAM as a tier has one that nothing is put into).
    pub fn is_ours(&self) -> bool {
        matches!(self.backing, Backing::Memory(_) | Backing::File(_))
    }

    /// The node, if the tier is memory of one.
    pub fn node(&self) -> Option<&Arc<Node>> {
        match &self.backing {
            Backing::Node(node) => Some(node),
            _ => None,
        }
    }

    /// The kernel's swap, if that is what the tier is.
    pub fn swap(&self) -> Option<&Arc<Swap>> {
        match &self.backing {
            Backing::Swap(swap) => Some(swap),
            _ => None,
        }
    }

    /// Whether what is stored here takes no DRAM.
    pub fn leaves_dram(&self) -> bool {
        match &self.backing {
            Backing::Memory(_) => self.pool_node().is_some(),
            Backing::Node(_) => true,
            Backing::File(files) => !files.is_in_dram(),
            Backing::Swap(swap) => !swap.kind().is_memory(),
        }
    }

    /// Bytes of DRAM that hold what is here. (Partly filled blocks of a file are elsewhere: on the
    /// heap.)
    pub fn dram_bytes(&self) -> u64 {
        match &self.backing {
            Backing::Memory(_) if self.pool_node().is_some() => 0,
            Backing::Memory(_) | Backing::Swap(_) => self.stats.physical_bytes(),
            Backing::File(files) if files.is_in_dram() => {
                self.stats.physical_bytes() + files.held_bytes()
            }
            Backing::File(_) | Backing::Node(_) => 0,
        }
    }

    /// Bytes of memory that hold what is here: DRAM, or of the node that the tier is.
    pub fn memory_bytes(&self) -> u64 {
        let is_far = self.node().is_some() || self.pool_node().is_some();
        if is_far { self.stats.physical_bytes() } else { self.dram_bytes() }
    }

    /// The part of [`Tier::dram_bytes`] that is in anonymous memory of this process.
    pub fn anonymous_bytes(&self) -> u64 {
        if matches!(self.backing, Backing::Memory(_)) { self.dram_bytes() } else { 0 }
    }

    /// Encodes `page` for this tier: [`Encoding::Same`] if it repeats 8 bytes, [`Encoding::Coded`]
    /// if the codec saves at least [`REJECT_MARGIN`], otherwise [`Encoding::Raw`] (counted as
    /// rejected where there is a codec). Cannot fail.
    pub fn encode<'s>(&self, page: &'s Page, scratch: &'s mut Scratch) -> Encoded<'s> {
        let encoded = self.encode_sample(page, scratch);
        let compresses = self.codec.as_ref().is_some_and(|codec| codec.compresses());
        if encoded.encoding == Encoding::Raw && compresses {
            self.stats.count_rejected();
        }
        encoded
    }

    /// Encodes `page` and decodes it again, only to measure both. `clock_ns` is the clock: CPU time
    /// of the calling thread in ns, say.
    pub fn measure(
        &self,
        page: &Page,
        scratch: &mut Scratch,
        clock_ns: impl Fn() -> u64,
    ) -> Measured {
        let begun_ns = clock_ns();
        let Encoded { encoding, checksum, bytes } = self.encode_sample(page, scratch);
        let encode_ns = clock_ns() - begun_ns;
        // Encoded bytes may lie in `scratch`, which decoding wants too.
        let stored = bytes.to_vec();
        let mut back = [0; PAGE_BYTES];
        let encoded = Encoded { encoding, checksum, bytes: &stored };
        let begun_ns = clock_ns();
        let _ = self.decode(encoded, &mut back, scratch);
        Measured { bytes: stored.len(), encode_ns, decode_ns: clock_ns() - begun_ns }
    }

    /// Encodes as [`Tier::encode`] does, for a page that is only measured: nothing is counted.
    pub fn encode_sample<'s>(&self, page: &'s Page, scratch: &'s mut Scratch) -> Encoded<'s> {
        let checksum = checksum(page);
        if page[PATTERN_BYTES..] == page[..PAGE_BYTES - PATTERN_BYTES] {
            return Encoded { encoding: Encoding::Same, checksum, bytes: &page[..PATTERN_BYTES] };
        }
        let raw = Encoded { encoding: Encoding::Raw, checksum, bytes: page };
        let Some(codec) = &self.codec else { return raw };
        match codec.compress(page, scratch, PAGE_BYTES - REJECT_MARGIN + 1) {
            Some(bytes) => Encoded { encoding: Encoding::Coded, checksum, bytes },
            None => raw,
        }
    }

    /// How many pages [`Tier::train`] wants to be shown; 0 if there is nothing to learn.
    pub fn training_pages(&self) -> usize {
        self.codec.as_ref().map_or(0, |codec| codec.training_pages())
    }

    /// Trains the tier's codec: see [`Codec::train`].
    pub fn train(&self, pages: &[Page], clock_ns: &dyn Fn() -> u64) -> bool {
        self.codec.as_ref().is_some_and(|codec| codec.train(pages, clock_ns))
    }

    /// Turns what [`Tier::encode`] of the same tier gave back into the page. After an error the
    /// content of `page` is unspecified and must not be used.
    ///
    /// # Errors
    /// [`DecodeError`] if that is not the page that was stored.
    pub fn decode(
        &self,
        encoded: Encoded<'_>,
        page: &mut Page,
        scratch: &mut Scratch,
    ) -> Result<(), DecodeError> {
        self.decode_unchecked(encoded, page, scratch)?;
        match checksum(page) {
            got if got == encoded.checksum => Ok(()),
            got => Err(DecodeError::Checksum { got, want: encoded.checksum }),
        }
    }

    fn decode_unchecked(
        &self,
        encoded: Encoded<'_>,
        page: &mut Page,
        scratch: &mut Scratch,
    ) -> Result<(), DecodeError> {
        let Encoded { encoding, bytes, .. } = encoded;
        let wrong_length = |want| DecodeError::Length { encoding, got: bytes.len(), want };
        match encoding {
            Encoding::Same => {
                let pattern: [u8; PATTERN_BYTES] =
                    bytes.try_into().map_err(|_| wrong_length(PATTERN_BYTES))?;
                page.as_chunks_mut::<PATTERN_BYTES>().0.fill(pattern);
                Ok(())
            }
            Encoding::Raw => {
                *page = *<&Page>::try_from(bytes).map_err(|_| wrong_length(PAGE_BYTES))?;
                Ok(())
            }
            Encoding::Coded => match &self.codec {
                Some(codec) => {
                    prefetch(bytes);
                    Ok(codec.decompress(bytes, page, scratch)?)
                }
                None => Err(DecodeError::NoCodec { tier: self.spec.name.clone() }),
            },
        }
    }
}
