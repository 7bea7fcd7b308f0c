// How the elements of one reduction become the words of packets, and their sum elements. The rules stand in
// host/codecs/words/codec.py; each codec is a codec_*.cpp that enters itself into the table here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "wire/job.hpp"
#include "wire/packet.hpp"
#include "wire/reduction.hpp"

namespace fanin {

// The input of encoding a packet: x * factor + residual, `n` elements. `residual` may be null.
struct EncoderInput {
  const std::uint8_t* x;
  std::size_t n;
  double factor;
  float* residual;
};

// The output of decoding a packet's sum: elements [skip, skip + count) of it, the first of them at `out`.
struct Kept {
  std::size_t skip;
  std::size_t count;
  std::uint8_t* out;
};

// A worker, by its place among all of the job, with an element that is not finite: one of [first, first + count).
struct Spoiler {
  std::uint32_t place;
  std::uint64_t first;
  std::uint64_t count;
};

struct PacketSpan {
  std::uint64_t start;
  std::size_t count;
};

// The codec of one reduction. Codes are in host order, words in wire order; no buffer need be aligned.
class WordCodec {
 public:
  virtual ~WordCodec() = default;

  std::uint8_t number = 32;   // what ranks must agree in
  std::uint64_t packets = 0;  // over all flows
  std::uint64_t packet_elements = 1;
  std::uint64_t block_elements = 1;  // that share a scale code
  bool scaled = false;               // whether the ranks agree on scale codes
  std::uint8_t lanes = 0;    // of a codec whose lanes the switch adds up one by one: Header.lanes of contributions
  bool in_one_flow = false;  // whether all packets must travel in the first flow

  virtual PacketSpan span(std::uint64_t packet) const = 0;
  virtual std::size_t word_count(std::uint64_t packet) const = 0;
  std::size_t result_word_count(std::uint64_t packet) const { return words_of_result(lanes, word_count(packet)); }
  // One code for each block; of a scaled codec only.
  virtual void codes(const EncoderInput& own, std::uint16_t* codes) const;
  virtual void encode(std::uint64_t packet, const EncoderInput& own, const std::uint16_t* codes,
                      std::uint8_t* words_be) const = 0;
  // What `decode` takes, when a packet's sum has come; null while it needs more packets.
  virtual const std::uint8_t* collect(std::uint64_t packet, const std::uint8_t* words_be);
  // `count` elements in all; divisor 0: by how many contributed.
  virtual void decode(const std::uint8_t* words_be, std::size_t count, const std::uint16_t* codes,
                      std::uint32_t contributors, double divisor, const Kept& kept) = 0;
  // The same past the caches (streaming.hpp), in one pass; false, and nothing is done, where there is no such way.
  virtual bool stream(const std::uint8_t*, const Kept&) { return false; }
  // The same of a sum that the switch has narrowed; of a codec with `lanes`.
  virtual void decode_narrowed(const std::uint8_t* words_be, std::size_t count, const std::uint16_t* codes,
                               std::uint32_t contributors, double divisor, std::uint32_t shift, const Kept& kept);
  // Marks in a packet's encoded words the blocks that this worker has spoiled (spoilers.hpp), by the agreed codes.
  virtual void mark(const EncoderInput&, const std::uint16_t*, std::uint8_t*) const {}
  // Workers that have spoiled elements of a packet, by what `collect` has returned.
  virtual std::vector<Spoiler> spoilers(std::uint64_t, const std::uint8_t*, const std::uint16_t*, std::uint32_t) const {
    return {};
  }
  // residual = x * factor + residual - what encoding made of it; called before decode, which may overwrite x.
  virtual void update_residual(const EncoderInput& own, const std::uint16_t* codes) const = 0;
};

// A codec whose packets have consecutive elements, in blocks of whole words.
class BlockCodec : public WordCodec {
 public:
  PacketSpan span(std::uint64_t packet) const final {
    const std::uint64_t start = packet * packet_elements;
    return {start, static_cast<std::size_t>(std::min(packet_elements, count_ - start))};
  }

 protected:
  void lay_out(std::uint64_t count, std::uint64_t elements_of_block, std::uint64_t blocks);

 private:
  std::uint64_t count_ = 0;
};

// A codec's place in the table. Made once for each, as a global of its file.
class CodecEntry {
 public:
  using Takes = bool (*)(Element element, std::uint32_t lanes);
  using Make = std::shared_ptr<WordCodec> (*)(const Reduction& asked, const JobSpec& spec, std::uint32_t place);

  CodecEntry(const char* name, Takes takes, Make make);

  const char* name;
  Takes takes;
  Make make;
};

// Every codec by name, in no particular order: a reduction is taken by one at most.
const std::vector<const CodecEntry*>& codec_table();

// std::invalid_argument where the job's switch does not add lanes one by one, or cannot hold the sum of so many.
void require_wide_sums(const JobSpec& spec, std::uint32_t up, std::uint32_t down);

// The codec of a reduction; std::invalid_argument for what no codec carries. `place`: this worker's in the whole job.
std::shared_ptr<WordCodec> codec_for(const Reduction& asked, const JobSpec& spec, std::uint32_t place);

}  // namespace fanin
