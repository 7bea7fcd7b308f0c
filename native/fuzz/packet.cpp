// Any bytes: parse() reads nothing beyond them, and what it accepts lies within them.
#include <cstdlib>

#include "input.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fanin;
  const Parsed parsed = parse({data, size});
  if (!parsed.ok()) return 0;
  if (datagram_bytes(parsed.header.code_count, parsed.word_count) != size) std::abort();
  if (parsed.codes != data + HEADER_BYTES || parsed.words + parsed.word_count * WORD_BYTES != data + size) std::abort();

  for (std::uint32_t index = 0; index < run_of(parsed.header); ++index) {
    const Parsed part = parsed.part(index, 7);
    if (part.codes + codes_bytes(part.header.code_count) > data + size) std::abort();
  }

  // A parsed packet can be written again, byte for byte (the checksum is not among the header's fields).
  std::uint8_t again[HEADER_BYTES];
  store_header(again, parsed.header);
  if (!std::equal(again, again + OFFSET_CHECKSUM, data)) std::abort();
  return 0;
}
