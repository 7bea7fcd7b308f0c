#include "codecs/word_codec.hpp"

#include <stdexcept>
#include <string>

namespace fanin {

namespace {

// The list is a local static because entries are globals of several files, constructed in any order.
std::vector<const CodecEntry*>& entries() {
  static std::vector<const CodecEntry*> table;
  return table;
}

constexpr std::uint32_t MAX_WIDE_CONTRIBUTIONS = 1u << 14;  // fanin.numerics.wide_sums.MAX_CONTRIBUTIONS

// Whether elements of this type travel in words of 32 bits, whatever lanes are requested.
bool takes_words_of_32_bits(Element element) {
  return element == Element::float64 || (!is_floating(element) && element != Element::int64);
}

}  // namespace

void WordCodec::codes(const EncoderInput&, std::uint16_t*) const {}

const std::uint8_t* WordCodec::collect(std::uint64_t, const std::uint8_t* words_be) { return words_be; }

void WordCodec::decode_narrowed(const std::uint8_t* words_be, std::size_t count, const std::uint16_t* codes,
                                std::uint32_t contributors, double divisor, std::uint32_t, const Kept& kept) {
  decode(words_be, count, codes, contributors, divisor, kept);
}

void BlockCodec::lay_out(std::uint64_t count, std::uint64_t elements_of_block, std::uint64_t blocks) {
  count_ = count;
  block_elements = elements_of_block;
  packet_elements = elements_of_block * blocks;
  packets = (count + packet_elements - 1) / packet_elements;
}

CodecEntry::CodecEntry(const char* name_, Takes takes_, Make make_) : name(name_), takes(takes_), make(make_) {
  entries().push_back(this);
}

const std::vector<const CodecEntry*>& codec_table() { return entries(); }

void require_wide_sums(const JobSpec& spec, std::uint32_t up, std::uint32_t down) {
  const std::string widths = std::to_string(up) + "/" + std::to_string(down);
  if (!spec.accumulators)
    throw std::invalid_argument("lanes = " + widths +
                                ": this job's switch adds whole words and keeps no accumulators for lanes; take packed "
                                "lanes (lanes = 32, 16, 8 or 4), or a software switch of this version");
  if (spec.contributions() > MAX_WIDE_CONTRIBUTIONS)
    throw std::invalid_argument(widths + "-bit lanes cannot hold the sum of " + std::to_string(spec.contributions()) +
                                " contributions; choose wider lanes");
}

std::shared_ptr<WordCodec> codec_for(const Reduction& asked, const JobSpec& spec, std::uint32_t place) {
  if (is_wide_sum(asked.lanes) && takes_words_of_32_bits(asked.element)) {
    Reduction in_words = asked;
    in_words.lanes = 32;
    return codec_for(in_words, spec, place);
  }
  for (const CodecEntry* entry : entries())
    if (entry->takes(asked.element, asked.lanes)) return entry->make(asked, spec, place);
  throw std::invalid_argument("no codec " + std::to_string(asked.lanes) + " for element type " +
                              std::to_string(static_cast<int>(asked.element)) + ": host/codecs/words has the table");
}

}  // namespace fanin
