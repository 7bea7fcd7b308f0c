#include "operation.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "packet.hpp"

namespace fanin {

namespace {

void check_exact(const Reduction& asked, const JobSpec& spec) {
  if (spec.max_staleness != 0)
    throw std::invalid_argument("an exact reduction through a job with staleness > 0: rounds would mix two of a rank");
  if (spec.ranks() != spec.workers && spec.places.empty())
    throw std::invalid_argument("an exact reduction in a tree needs the places of its workers (JobSpec.places)");
  if (is_floating(asked.element) && asked.with >= Operator::band)
    throw std::invalid_argument("bits are for integers");
}

void check(const Reduction& asked, const JobSpec& spec) {
  if (asked.lanes == EXACT)
    check_exact(asked, spec);
  else if (asked.with != Operator::sum || asked.element == Element::int64)
    throw std::invalid_argument("other operators than sums, and int64, need lanes = 0 (exact)");
  else if (is_floating(asked.element) && spec.max_staleness != 0 && asked.scale_code == 0)
    throw std::invalid_argument("floating point through a job with staleness > 0: rounds would mix scales");
  if (asked.passes && is_floating(asked.element) && asked.scale_code == 0)
    throw std::invalid_argument("a pass has no part in agreeing on scale codes: give it a scale_code");
  if (!is_floating(asked.element) && (asked.divisor != 1.0 || asked.factor != 1.0))
    throw std::invalid_argument("integers are summed exactly: divide or multiply them outside");
  const std::size_t size = element_bytes(asked.element);
  const auto source = reinterpret_cast<std::uintptr_t>(asked.source);
  const auto destination = reinterpret_cast<std::uintptr_t>(asked.destination);
  const bool apart = destination + asked.keep_count * size <= source || destination >= source + asked.count * size;
  if (asked.keep_count != 0 && !apart && destination != source + asked.keep_first * size)
    throw std::invalid_argument("destination overlaps source other than in place: reduce into separate memory");
}

constexpr std::uint8_t EXACT_OPERATORS = 128;  // plus the operator, in the place of lanes

// zlib.crc32(struct.pack("!QQBBB", ticket, count, element, lanes, tag)), as in host/machine/operation.py.
std::uint32_t signature_of(std::uint64_t ticket, const Reduction& asked, const Codec& codec) {
  std::uint8_t fields[19];
  const auto store_be64 = [](std::uint8_t* at, std::uint64_t value) {
    store_be32(at, static_cast<std::uint32_t>(value >> 32));
    store_be32(at + 4, static_cast<std::uint32_t>(value));
  };
  store_be64(fields, ticket);
  store_be64(fields + 8, asked.count);
  fields[16] = static_cast<std::uint8_t>(asked.element);
  fields[17] = asked.lanes == EXACT ? static_cast<std::uint8_t>(EXACT_OPERATORS + static_cast<std::uint8_t>(asked.with))
                                    : static_cast<std::uint8_t>(codec.lanes);
  fields[18] = asked.tag;
  return crc32(fields, sizeof fields);
}

}  // namespace

Operation::Operation(std::uint64_t ticket_, const Reduction& asked, const JobSpec& spec, std::uint32_t flow,
                     std::uint32_t flow_count, std::uint64_t first, std::uint32_t place)
    : ticket(ticket_),
      first_item(first),
      asked_(asked),
      codec_(asked.element, asked.lanes == EXACT ? 8 * WORD_BYTES : asked.lanes, spec.contributions()),
      elements_per_chunk_(elements_per_packet(codec_, spec.words_per_packet / spec.codes_per_packet) *
                          spec.codes_per_packet),
      block_elements_(elements_per_chunk_ / spec.codes_per_packet),
      flow_(flow),
      flow_count_(flow_count) {
  check(asked, spec);
  std::uint64_t of_all_flows = (asked.count + elements_per_chunk_ - 1) / elements_per_chunk_;
  if (is_exact()) {
    gather_ = Gather(asked, spec, place);
    of_all_flows = gather_.packets;
    elements_per_chunk_ = gather_.elements_per_packet;
    if (gather_.spread) {
      of_all_flows *= flow == 0;
      flow = 0;
      flow_ = 0, flow_count_ = flow_count = 1;
    }
  }
  chunks = of_all_flows > flow ? (of_all_flows - flow + flow_count - 1) / flow_count : 0;
  unfinished_chunks = chunks;
  given_codes_.fill(asked.scale_code);
  if (is_floating(asked.element) && asked.scale_code == 0 && !is_exact()) {
    code_count = spec.codes_per_packet;
    forecasts = of_all_flows == 1 && words_for(codec_, asked.count) + AGE_WORDS <= spec.words_per_packet &&
                spec.synchronous();
    lead = forecasts ? 0 : std::min<std::uint64_t>(spec.slots, chunks);
  }
  signature = asked.signature != 0 ? asked.signature : signature_of(ticket, asked, codec_);
}

void Operation::own_codes(std::uint64_t chunk, std::uint16_t* codes) const {
  const Span at = span(chunk);
  const std::size_t blocks = (at.count + block_elements_ - 1) / block_elements_;
  scale_codes(codec_, source(at), at.count, block_elements_, asked_.factor, residual(at), codes);
  std::fill(codes + blocks, codes + code_count, std::uint16_t{0});
}

void Operation::quantized(std::uint64_t chunk, const std::uint16_t* agreed, std::uint8_t* words) const {
  const Span at = span(chunk);
  if (is_exact())
    return gather_.contribution(packet(chunk), source(at), at.count, asked_.factor, residual(at), words);
  quantize(codec_, source(at), at.count, block_elements_, codes(agreed), asked_.factor, residual(at), words);
}

Operation::Kept Operation::kept(const Span& at) const {
  const std::uint64_t first = std::max<std::uint64_t>(at.start, asked_.keep_first);
  const std::uint64_t last = std::min<std::uint64_t>(at.start + at.count, asked_.keep_first + asked_.keep_count);
  if (first >= last) return {0, 0, nullptr};
  return {static_cast<std::size_t>(first - at.start), static_cast<std::size_t>(last - first),
          asked_.destination + (first - asked_.keep_first) * element_bytes(asked_.element)};
}

void Operation::store(std::uint64_t chunk, const std::uint16_t* agreed, const std::uint8_t* words,
                      std::uint32_t contributors) {
  tell(chunk, contributors);
  if (is_exact()) return store_exact(chunk, words, contributors);
  const Span at = span(chunk);
  if (asked_.residual != nullptr)
    update_residual(codec_, source(at), at.count, block_elements_, codes(agreed), asked_.factor, residual(at));
  const Kept keep = kept(at);
  if (keep.count != 0)
    dequantize(codec_, words, at.count, block_elements_, codes(agreed), contributors,
               asked_.divisor != 0 ? asked_.divisor : std::max(contributors, 1u), keep.skip, keep.count, keep.out);
}

// The same of an exact reduction; of a spread one, with its last packet.
void Operation::store_exact(std::uint64_t chunk, const std::uint8_t* words, std::uint32_t contributors) {
  if (gather_.spread) {
    gather_.keep(packet(chunk), words);
    if (unfinished_chunks > 1) return;
  }
  const Span at = span(chunk);
  if (asked_.residual != nullptr) exact_residual(asked_.element, source(at), at.count, asked_.factor, residual(at));
  const Gather::Result result = gather_.result(words, contributors);
  const Parts parts = {.element = asked_.element,
                       .ranks = gather_.ranks(),
                       .present = result.present,
                       .part_bytes = exact_words(asked_.element, at.count) * WORD_BYTES,
                       .words_be = result.parts_be};
  const Kept keep = kept(at);
  if (keep.count != 0)
    exact_decode(parts, asked_.with, asked_.divisor != 0 ? asked_.divisor : std::max(result.contributors, 1u), keep.skip,
                 keep.count, keep.out);
  gather_.forget();
}

void Operation::store_zeros(std::uint64_t chunk) {
  if (is_exact()) {
    const std::vector<std::uint8_t> nobodys(gather_.word_count(packet(chunk)) * WORD_BYTES);
    return store(chunk, nullptr, nobodys.data(), 0);
  }
  const Span at = span(chunk);
  tell(chunk, 0);
  if (asked_.residual != nullptr)
    update_residual(codec_, source(at), at.count, block_elements_, given_codes_.data(), asked_.factor, residual(at));
  const Kept keep = kept(at);
  if (keep.count != 0) std::memset(keep.out, 0, keep.count * element_bytes(asked_.element));
}

}  // namespace fanin
