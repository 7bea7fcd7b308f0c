/* Our checksum: the CRC-32 of IEEE 802.3 over the whole datagram, its own field taken for zero (docs/protocol.md).
 *
 * hash() covers a fixed list of fields, and packets differ in length; so the CRC is computed block by block. A fresh CRC
 * of the next block continues the previous one if the CRC so far (the inverted remainder), least byte first, is XORed
 * into the first four bytes of that block.
 *
 * The payload of a HELLO, BYE, WELCOME or NOTICE is not parsed: the controller, which gets the whole packet, verifies its
 * checksum. */
#ifndef FANIN_CHECKSUM_P4
#define FANIN_CHECKSUM_P4

#include "types.p4"

#define CRC_RANGE 64w0x1_0000_0000
#define SO_FAR (checksum[7:0] ++ checksum[15:8] ++ checksum[23:16] ++ checksum[31:24])
#define GO_ON(VALID, WIDTH, DATA)                                                                                      \
    if (VALID) {                                                                                                       \
        hash(checksum, HashAlgorithm.crc32, 32w0,                                                                      \
             { (DATA)[WIDTH - 1:WIDTH - 32] ^ SO_FAR, (DATA)[WIDTH - 33:0] }, CRC_RANGE);                              \
    }
#define GO_ON_BLOCK(HEADER, WIDTH) GO_ON(HEADER.isValid(), WIDTH, HEADER.data)
#define GO_ON_WORD(HEADER)                                                                                             \
    if (HEADER.isValid()) {                                                                                            \
        hash(checksum, HashAlgorithm.crc32, 32w0, { HEADER.data ^ SO_FAR }, CRC_RANGE);                                \
    }

/* The checksum of a packet that consists of our header alone. */
control HeaderChecksum(in headers_t hdr, out bit<32> checksum) {
    apply {
        hash(checksum, HashAlgorithm.crc32, 32w0,
             { hdr.fanin.magic, hdr.fanin.version, hdr.fanin.kind, hdr.fanin.job, hdr.fanin.worker, hdr.fanin.flags,
               hdr.fanin.generation, hdr.fanin.slot, hdr.fanin.base, hdr.fanin.signature, hdr.fanin.bitmap,
               hdr.fanin.contributors, hdr.fanin.code_count, hdr.fanin.reserved, 32w0 }, CRC_RANGE);
    }
}

/* The checksum of our header and all valid blocks behind it. */
control Checksum(in headers_t hdr, out bit<32> checksum) {
    HeaderChecksum() of_header;
    apply {
        of_header.apply(hdr, checksum);
        GO_ON(hdr.absent.isValid(), 64, hdr.absent.lost ++ hdr.absent.left)
        GO_ON_BLOCK(hdr.codes32, 1024)
        GO_ON_BLOCK(hdr.codes16, 512)
        GO_ON_BLOCK(hdr.codes8, 256)
        GO_ON_BLOCK(hdr.codes4, 128)
        GO_ON_BLOCK(hdr.codes2, 64)
        GO_ON_WORD(hdr.codes1)
        GO_ON_BLOCK(hdr.words64[0], 2048)
#if WHOLE_BLOCKS > 1
        GO_ON_BLOCK(hdr.words64[1], 2048)
#if WHOLE_BLOCKS > 2
        GO_ON_BLOCK(hdr.words64[2], 2048)
        GO_ON_BLOCK(hdr.words64[3], 2048)
#endif
#endif
        GO_ON_BLOCK(hdr.words32, 1024)
        GO_ON_BLOCK(hdr.words16, 512)
        GO_ON_BLOCK(hdr.words8, 256)
        GO_ON_BLOCK(hdr.words4, 128)
        GO_ON_BLOCK(hdr.words2, 64)
        GO_ON_WORD(hdr.words1)
    }
}

/* Writes the checksum into a packet that has FLAG_CHECKSUM. */
control Seal(inout headers_t hdr) {
    Checksum() checksum;
    apply {
        if ((hdr.fanin.flags & FLAG_CHECKSUM) != 0) {
            bit<32> computed;
            checksum.apply(hdr, computed);
            hdr.fanin.checksum = computed;
        }
    }
}

#undef GO_ON
#undef GO_ON_BLOCK
#undef GO_ON_WORD
#undef SO_FAR

#endif
