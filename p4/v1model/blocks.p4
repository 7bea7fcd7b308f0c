/* `sum`: a ring by round, kept in blocks of 1, 2, 4 ... 64 words (types.p4); and the largest scale codes beside them.
 *
 * A block adds all its words, or compares all its codes, with a handful of operations on one wide number:
 *
 *   add    32-bit words that wrap around: add without the top bit of each word, so that nothing is carried over from
 *          one to the next, then put the top bits right, x xor y xor carry.
 *   larger 16-bit codes: with the top bit of every code of x set, x - y borrows nothing from the next code, and leaves
 *          the top bit set exactly where x's lower 15 bits are not the smaller ones. Where the top bits of x and y
 *          differ, x's own top bit decides instead. That bit, spread over its code, selects.
 *
 * Each control first adds the packet's block to its register (`adds`), then copies a round's block to the packet (`shows`). */
#ifndef FANIN_BLOCKS_P4
#define FANIN_BLOCKS_P4

#include "types.p4"

/* The top bit of every word, and of every code, of a block. */
const bit<32> WORD_TOPS1 = 0x80000000;
const bit<64> WORD_TOPS2 = WORD_TOPS1 ++ WORD_TOPS1;
const bit<128> WORD_TOPS4 = WORD_TOPS2 ++ WORD_TOPS2;
const bit<256> WORD_TOPS8 = WORD_TOPS4 ++ WORD_TOPS4;
const bit<512> WORD_TOPS16 = WORD_TOPS8 ++ WORD_TOPS8;
const bit<1024> WORD_TOPS32 = WORD_TOPS16 ++ WORD_TOPS16;
const bit<2048> WORD_TOPS64 = WORD_TOPS32 ++ WORD_TOPS32;
const bit<32> CODE_TOPS1 = 0x80008000;
const bit<64> CODE_TOPS2 = CODE_TOPS1 ++ CODE_TOPS1;
const bit<128> CODE_TOPS4 = CODE_TOPS2 ++ CODE_TOPS2;
const bit<256> CODE_TOPS8 = CODE_TOPS4 ++ CODE_TOPS4;
const bit<512> CODE_TOPS16 = CODE_TOPS8 ++ CODE_TOPS8;
const bit<1024> CODE_TOPS32 = CODE_TOPS16 ++ CODE_TOPS16;

#define SUMS(NAME, HEADER, WIDTH, TOPS)                                                                                \
    control NAME(inout HEADER block, inout metadata_t meta, in bit<1> shown) {                                            \
        register<bit<WIDTH>>(ENTRY_COUNT) sums;                                                                        \
        apply {                                                                                                        \
            if (meta.adds == 1 && block.isValid()) {                                                                   \
                if (meta.starts == 0) {                                                                                \
                    bit<WIDTH> held;                                                                                   \
                    sums.read(held, meta.open_entry);                                                                  \
                    block.data = ((held & ~TOPS) + (block.data & ~TOPS)) ^ ((held ^ block.data) & TOPS);               \
                }                                                                                                      \
                sums.write(meta.open_entry, block.data);                                                               \
            }                                                                                                          \
            if (meta.shows == 1) {                                                                                     \
                if (shown == 1) {                                                                                      \
                    block.setValid();                                                                                  \
                    sums.read(block.data, meta.result_entry);                                                          \
                } else {                                                                                               \
                    block.setInvalid();                                                                                \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

#define LARGEST(NAME, HEADER, WIDTH, TOPS)                                                                             \
    control NAME(inout HEADER block, inout metadata_t meta, in bit<1> shown) {                                            \
        register<bit<WIDTH>>(ENTRY_COUNT) largest;                                                                     \
        apply {                                                                                                        \
            if (meta.adds == 1 && block.isValid()) {                                                                   \
                if (meta.starts == 0) {                                                                                \
                    bit<WIDTH> held;                                                                                   \
                    largest.read(held, meta.open_entry);                                                               \
                    bit<WIDTH> not_less = (held | TOPS) - (block.data & ~TOPS);                                        \
                    bit<WIDTH> wins = ((held & ~block.data) | (~(held ^ block.data) & not_less)) & TOPS;               \
                    bit<WIDTH> selects = (wins << 1) - (wins >> 15);                                                   \
                    block.data = (held & selects) | (block.data & ~selects);                                           \
                }                                                                                                      \
                largest.write(meta.open_entry, block.data);                                                            \
            }                                                                                                          \
            if (meta.shows == 1) {                                                                                     \
                if (shown == 1) {                                                                                      \
                    block.setValid();                                                                                  \
                    largest.read(block.data, meta.result_entry);                                                       \
                } else {                                                                                               \
                    block.setInvalid();                                                                                \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

SUMS(Sums1, block1_t, 32, WORD_TOPS1)
SUMS(Sums2, block2_t, 64, WORD_TOPS2)
SUMS(Sums4, block4_t, 128, WORD_TOPS4)
SUMS(Sums8, block8_t, 256, WORD_TOPS8)
SUMS(Sums16, block16_t, 512, WORD_TOPS16)
SUMS(Sums32, block32_t, 1024, WORD_TOPS32)
SUMS(Sums64, block64_t, 2048, WORD_TOPS64)
LARGEST(Largest1, block1_t, 32, CODE_TOPS1)
LARGEST(Largest2, block2_t, 64, CODE_TOPS2)
LARGEST(Largest4, block4_t, 128, CODE_TOPS4)
LARGEST(Largest8, block8_t, 256, CODE_TOPS8)
LARGEST(Largest16, block16_t, 512, CODE_TOPS16)
LARGEST(Largest32, block32_t, 1024, CODE_TOPS32)

/* R-SLOT-9: adds all words of a packet to their registers, and copies a round's words to the packet. */
control Sums(inout headers_t hdr, inout metadata_t meta) {
    Sums1() sums1;
    Sums2() sums2;
    Sums4() sums4;
    Sums8() sums8;
    Sums16() sums16;
    Sums32() sums32;
    Sums64() first64;
#if WHOLE_BLOCKS > 1
    Sums64() second64;
#if WHOLE_BLOCKS > 2
    Sums64() third64;
    Sums64() fourth64;
#endif
#endif
    apply {
        bit<3> whole = meta.round.words[8:6];
        first64.apply(hdr.words64[0], meta, (bit<1>)(whole > 0));
#if WHOLE_BLOCKS > 1
        second64.apply(hdr.words64[1], meta, (bit<1>)(whole > 1));
#if WHOLE_BLOCKS > 2
        third64.apply(hdr.words64[2], meta, (bit<1>)(whole > 2));
        fourth64.apply(hdr.words64[3], meta, (bit<1>)(whole > 3));
#endif
#endif
        sums32.apply(hdr.words32, meta, meta.round.words[5:5]);
        sums16.apply(hdr.words16, meta, meta.round.words[4:4]);
        sums8.apply(hdr.words8, meta, meta.round.words[3:3]);
        sums4.apply(hdr.words4, meta, meta.round.words[2:2]);
        sums2.apply(hdr.words2, meta, meta.round.words[1:1]);
        sums1.apply(hdr.words1, meta, meta.round.words[0:0]);
    }
}

/* R-SLOT-9: compares all scale codes of a packet, two to a word, and copies a round's codes to the packet. */
control Exponents(inout headers_t hdr, inout metadata_t meta) {
    Largest1() largest1;
    Largest2() largest2;
    Largest4() largest4;
    Largest8() largest8;
    Largest16() largest16;
    Largest32() largest32;
    apply {
        bit<8> words = (meta.round.codes + 1) >> 1;
        largest32.apply(hdr.codes32, meta, words[5:5]);
        largest16.apply(hdr.codes16, meta, words[4:4]);
        largest8.apply(hdr.codes8, meta, words[3:3]);
        largest4.apply(hdr.codes4, meta, words[2:2]);
        largest2.apply(hdr.codes2, meta, words[1:1]);
        largest1.apply(hdr.codes1, meta, words[0:0]);
    }
}

#undef SUMS
#undef LARGEST

#endif
