/* A round's facts beside its sums: signature, contributors, and shape. The first contribution other than a pass sets them. */
#ifndef FANIN_ROUND_P4
#define FANIN_ROUND_P4

#include "types.p4"

#define ROUND register<bit<32>> signatures, register<bit<16>> contributors, register<bit<8>> codes, register<bit<16>> words

control RoundRead(inout metadata_t meta, ROUND) {
    apply {
        signatures.read(meta.round.signature, meta.round_entry);
        contributors.read(meta.round.contributors, meta.round_entry);
        codes.read(meta.round.codes, meta.round_entry);
        words.read(meta.round.words, meta.round_entry);
    }
}

/* R-SLOT-9: records an accepted contribution; tells the blocks to add it (`adds`), and to overwrite the entry (`starts`). */
control RoundAdd(in headers_t hdr, inout metadata_t meta, ROUND) {
    apply {
        if (meta.count == 0) {
            meta.round = { 0, 0, 0, 0 };
        }
        /* A switch below this one says how many contributions it holds; a worker's packet holds one. */
        bit<16> holds = 1;
        if (meta.job.branches == 1 && hdr.fanin.contributors != 0) {
            holds = hdr.fanin.contributors;
        }
        if (meta.passes == 0) {
            meta.adds = 1;
            if (meta.round.contributors == 0) {
                meta.starts = 1;
                meta.round.signature = hdr.fanin.signature;
                meta.round.codes = hdr.fanin.code_count;
                meta.round.words = meta.word_count;
            }
            meta.round.contributors = meta.round.contributors + holds;
        }
        signatures.write(meta.open_entry, meta.round.signature);
        contributors.write(meta.open_entry, meta.round.contributors);
        codes.write(meta.open_entry, meta.round.codes);
        words.write(meta.open_entry, meta.round.words);
    }
}

/* R-LEAF-3: the parent's result replaces the sums and facts of this switch. */
control RoundReplace(in headers_t hdr, inout metadata_t meta, ROUND) {
    apply {
        meta.adds = 1;
        meta.starts = 1;
        meta.round = { hdr.fanin.signature, hdr.fanin.contributors, hdr.fanin.code_count, meta.word_count };
        signatures.write(meta.open_entry, meta.round.signature);
        contributors.write(meta.open_entry, meta.round.contributors);
        codes.write(meta.open_entry, meta.round.codes);
        words.write(meta.open_entry, meta.round.words);
    }
}

#endif
