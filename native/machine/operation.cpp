#include "machine/operation.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "kernels/kernels.hpp"
#include "wire/packet.hpp"
#include "kernels/streaming.hpp"

namespace fanin {

namespace {

void check(const Reduction& asked, const WordCodec& codec, const JobSpec& spec) {
  if (asked.lanes != EXACT && asked.with != Operator::sum)
    throw std::invalid_argument("other operators than sums need lanes = 0 (exact)");
  if (codec.scaled && spec.max_staleness != 0 && asked.scale_code == 0)
    throw std::invalid_argument("floating point through a job with staleness > 0: rounds would mix scales");
  if (asked.passes && is_floating(asked.element) && asked.scale_code == 0)
    throw std::invalid_argument("a pass has no part in agreeing on scale codes: give it a scale_code");
  if (!is_floating(asked.element) && (asked.divisor != 1.0 || asked.factor != 1.0))
    throw std::invalid_argument("integers are summed exactly: divide or multiply them outside");
  if (asked.owned && !spec.synchronous())
    throw std::invalid_argument(
        "gathers and broadcasts need rounds that wait for every worker: an owner may be missing");
  const std::size_t size = element_bytes(asked.element);
  const std::uint64_t given = asked.owned ? asked.own_count : asked.count;
  const auto source = reinterpret_cast<std::uintptr_t>(asked.source);
  const auto destination = reinterpret_cast<std::uintptr_t>(asked.destination);
  // Tensors without memory of their own (freed, fake, wrapped) give address 0, which would end the process.
  if ((given != 0 && !asked.passes && source == 0) || (asked.keep_count != 0 && destination == 0))
    throw std::invalid_argument("elements at address 0: a tensor without memory of its own was submitted");
  const bool apart = destination + asked.keep_count * size <= source || destination >= source + given * size;
  if (asked.keep_count != 0 && given != 0 && !apart &&
      destination != source + (asked.keep_first - asked.own_first) * size)
    throw std::invalid_argument("destination overlaps source other than in place: reduce into separate memory");
}

// zlib.crc32(struct.pack("!QQBBI", ticket, count, element, number, tag)), as in host/machine/operation.py.
std::uint32_t signature_of(std::uint64_t ticket, const Reduction& asked, const WordCodec& codec) {
  std::uint8_t fields[22];
  const auto store_be64 = [](std::uint8_t* at, std::uint64_t value) {
    store_be32(at, static_cast<std::uint32_t>(value >> 32));
    store_be32(at + 4, static_cast<std::uint32_t>(value));
  };
  store_be64(fields, ticket);
  store_be64(fields + 8, asked.count);
  fields[16] = static_cast<std::uint8_t>(asked.element);
  fields[17] = codec.number;
  store_be32(fields + 18, asked.tag);
  return crc32(fields, sizeof fields);
}

}  // namespace

Operation::Operation(std::uint64_t ticket_, const Reduction& asked, const JobSpec& spec, std::uint32_t flow,
                     std::uint32_t flow_count, std::uint64_t first, std::uint32_t place)
    : ticket(ticket_),
      first_item(first),
      asked_(asked),
      codec_(codec_for(asked, spec, place)),
      flow_(flow),
      flow_count_(flow_count) {
  check(asked, *codec_, spec);
  std::uint64_t packets = codec_->packets;
  given_codes_.fill(asked.scale_code);
  if (codec_->scaled && asked.scale_code == 0) {
    code_count = spec.codes_per_packet;
    forecasts = packets == 1 && codec_->word_count(0) + AGE_WORDS <= spec.words_per_packet && spec.synchronous() &&
                codec_->lanes == 0;  // the words of the age must be added whole
  }
  if (codec_->in_one_flow) {
    packets *= flow_ == 0;
    flow_ = 0, flow_count_ = 1;
  }
  chunks = packets > flow_ ? (packets - flow_ + flow_count_ - 1) / flow_count_ : 0;
  unfinished_chunks = chunks;
  lead = code_count == 0 || forecasts ? 0 : std::min<std::uint64_t>(spec.slots, chunks);
  plain_ = keeps_all() && !asked.passes && !forecasts;
  streams_ = streams();
  signature = asked.signature != 0 ? asked.signature : signature_of(ticket, asked, *codec_);
}

void Operation::own_codes(std::uint64_t chunk, std::uint16_t* codes) const {
  const PacketSpan at = codec_->span(packet(chunk));
  const std::size_t blocks = at.count == codec_->packet_elements
                                 ? code_count  // as in most packets, and without a division
                                 : (at.count + codec_->block_elements - 1) / codec_->block_elements;
  codec_->codes(own(at), codes);
  std::fill(codes + blocks, codes + code_count, std::uint16_t{0});
}

void Operation::quantized(std::uint64_t chunk, const std::uint16_t* agreed, std::uint8_t* words) const {
  const std::uint64_t number = packet(chunk);
  const PacketSpan at = codec_->span(number);
  if (!owned()) {
    codec_->encode(number, own(at), codes(agreed), words);
    if (spoiled(agreed)) codec_->mark(own(at), agreed, words);
    return;
  }
  const Range mine = own(Range{at.start, at.start + at.count});
  const std::uint8_t* const from = asked_.source + (mine.first - asked_.own_first);
  if (mine.count() == at.count) return codec_->encode(number, {from, at.count, 1.0, nullptr}, nullptr, words);
  std::vector<std::uint8_t> whole(at.count);  // for a packet of which this worker owns only a part
  std::copy_n(from, mine.count(), whole.begin() + static_cast<std::ptrdiff_t>(mine.first - at.start));
  codec_->encode(number, {whole.data(), at.count, 1.0, nullptr}, nullptr, words);
}

bool Operation::passes(std::uint64_t item) const {
  if (!owned() || !carries_words(item)) return asked_.passes;
  const PacketSpan at = codec_->span(packet(words_chunk(item)));
  return own(Range{at.start, at.start + at.count}).count() == 0;
}

bool Operation::is_sole(std::uint64_t item) const {
  if (!owned() || !carries_words(item)) return false;
  const PacketSpan at = codec_->span(packet(words_chunk(item)));
  return own(Range{at.start, at.start + at.count}).count() == at.count;
}

bool Operation::keeps_part(std::uint64_t item, const std::uint16_t* agreed) const {
  if (!carries_words(item) || forecasts || spoiled(agreed)) return true;
  const Range wanted = kept(codec_->span(packet(words_chunk(item))));
  return wanted.count() > (owned() ? own(wanted).count() : 0);
}

Operation::Range Operation::own(Range of) const {
  const std::uint64_t first = std::min(std::max(of.first, asked_.own_first), of.last);
  return {first, std::max(first, std::min(of.last, asked_.own_first + asked_.own_count))};
}

Operation::Range Operation::kept(const PacketSpan& at) const {
  const std::uint64_t first = std::max<std::uint64_t>(at.start, asked_.keep_first);
  const std::uint64_t last = std::min<std::uint64_t>(at.start + at.count, asked_.keep_first + asked_.keep_count);
  return {first, std::max(first, last)};
}

Kept Operation::place(const PacketSpan& at, Range elements) const {
  return {static_cast<std::size_t>(elements.first - at.start), static_cast<std::size_t>(elements.count()),
          asked_.destination + (elements.first - asked_.keep_first) * element_bytes(asked_.element)};
}

inline void Operation::decode(const Sum& sum, const PacketSpan& at, Range part) {
  if (part.count() == 0) return;
  const Kept there = place(at, part);
  const auto decode_to = [&](const Kept& kept) {
    codec_->decode_narrowed(sum.words, at.count, sum.codes, sum.contributors, asked_.divisor, sum.shift, kept);
  };
  if (!streams_) return decode_to(there);
  if (codec_->stream(sum.words, there)) return;
  thread_local std::vector<std::uint8_t> near;
  const std::size_t bytes = there.count * element_bytes(asked_.element);
  if (near.size() < bytes) near.resize(bytes);
  decode_to({there.skip, there.count, near.data()});
  stream_copy(there.out, near.data(), bytes);
}

std::vector<Spoiler> Operation::store(std::uint64_t chunk, const std::uint16_t* agreed, const std::uint8_t* words,
                                      std::uint32_t contributors, std::uint32_t shift) {
  const std::uint64_t number = packet(chunk);
  if (asked_.counts != nullptr) asked_.counts[number] = contributors;
  const PacketSpan at = codec_->span(number);
  if (owned()) keep_own(at);
  const std::uint8_t* const collected = words == nullptr ? nullptr : codec_->collect(number, words);
  if (collected == nullptr && (words != nullptr || codec_->in_one_flow)) return {};
  if (asked_.residual != nullptr) codec_->update_residual(own(at), codes(agreed));
  if (collected == nullptr) return {};
  const Range wanted = kept(at);
  const Sum sum = {collected, codes(agreed), contributors, shift};
  if (owned()) {
    const Range mine = own(wanted);
    decode(sum, at, {wanted.first, mine.first});
    decode(sum, at, {mine.last, wanted.last});
  } else {
    decode(sum, at, wanted);
  }
  if (!sums_exactly() && !spoiled(agreed)) return {};
  std::vector<Spoiler> news = codec_->spoilers(number, collected, agreed, contributors);
  std::erase_if(news, [this](const Spoiler& each) { return !is_news(each); });
  return news;
}

bool Operation::is_news(const Spoiler& spoiler) {
  const auto known = std::ranges::find(spoilers_, spoiler.place, &Spoiler::place);
  if (known == spoilers_.end()) {
    spoilers_.push_back(spoiler);
    return true;
  }
  if (known->first <= spoiler.first) return false;
  *known = spoiler;
  return true;
}

// Called when the result has come, since the elements, which were read a window before, are still in the caches.
void Operation::keep_own(const PacketSpan& at) const {
  const Range mine = own(kept(at));
  if (mine.count() == 0) return;
  const std::uint8_t* const from = asked_.source + (mine.first - asked_.own_first);
  std::uint8_t* const to = place(at, mine).out;
  if (from == to) return;
  if (streams_)
    stream_copy(to, from, mine.count());
  else
    std::memcpy(to, from, mine.count());
}

// Results are not streamed in place, since those elements were read a window before and are still in the caches.
bool Operation::streams() const {
  const std::size_t size = element_bytes(asked_.element);
  const bool in_place = !owned() && asked_.destination == asked_.source + asked_.keep_first * size;
  return asked_.keep_count * size >= STREAMED_BYTES && !in_place;
}

void Operation::store_zeros(std::uint64_t chunk) {
  const std::vector<std::uint8_t> nobodys(codec_->result_word_count(packet(chunk)) * WORD_BYTES);
  store(chunk, given_codes_.data(), nobodys.data(), 0);
}

}  // namespace fanin
