// The kernels for Python: contract tests and benchmarks/kernels.py compare them with fanin.numerics.fixed_point.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bind/bind.hpp"
#include "kernels/gradient_blocks.hpp"
#include "kernels/gradient_kernels.hpp"
#include "kernels/kernels.hpp"
#include "wire/packet_tag.hpp"
#include "kernels/streaming.hpp"
#include "kernels/weight_kernels.hpp"
#include "codecs/word_codec.hpp"

namespace py = pybind11;

namespace fanin {

namespace {

// Arrays are taken as bytes, so that bfloat16 and buffers that are not aligned pass as they are.
using Bytes = py::array_t<std::uint8_t, py::array::c_style>;
using Codes = py::array_t<std::uint16_t, py::array::c_style | py::array::forcecast>;
using Words = py::array_t<std::uint32_t, py::array::c_style>;
using Residual = std::optional<py::array_t<float, py::array::c_style>>;

void require(bool legal, const char* text) {
  if (!legal) throw std::invalid_argument(text);
}

std::size_t element_count(const FixedPoint& codec, const Bytes& x) {
  const auto bytes = static_cast<std::size_t>(x.size());
  require(bytes % element_bytes(codec.element) == 0, "x is no whole number of elements");
  return bytes / element_bytes(codec.element);
}

std::size_t block_count(const FixedPoint& codec, std::size_t n, std::size_t block_elements) {
  if (!is_floating(codec.element)) return 0;
  require(block_elements > 0 && words_for(codec, block_elements) * 4 * 8 % (codec.lanes * block_elements) == 0,
          "block_elements must be a positive number of whole words' worth");
  return (n + block_elements - 1) / block_elements;
}

void require_codes(const FixedPoint& codec, const Codes& codes, std::size_t n, std::size_t block_elements) {
  require(static_cast<std::size_t>(codes.size()) >= block_count(codec, n, block_elements), "too few codes");
}

const float* residual_of(const Residual& residual, std::size_t n) {
  if (!residual) return nullptr;
  require(static_cast<std::size_t>(residual->size()) == n, "residual must have as many elements as x");
  return residual->data();
}

Codes codes_of(const FixedPoint& codec, const Bytes& x, std::size_t block_elements, double factor,
               const Residual& residual) {
  const std::size_t n = element_count(codec, x);
  Codes codes(static_cast<py::ssize_t>(block_count(codec, n, block_elements)));
  scale_codes(codec, x.data(), n, block_elements, factor, residual_of(residual, n), codes.mutable_data());
  return codes;
}

void quantize_into(const FixedPoint& codec, const Bytes& x, const Codes& codes, std::size_t block_elements,
                   Bytes& words_be, double factor, const Residual& residual) {
  const std::size_t n = element_count(codec, x);
  require_codes(codec, codes, n, block_elements);
  require(static_cast<std::size_t>(words_be.size()) == words_for(codec, n) * 4, "words_be has the wrong length");
  quantize(codec, x.data(), n, block_elements, codes.data(), factor, residual_of(residual, n), words_be.mutable_data());
}

void dequantize_into(const FixedPoint& codec, const Bytes& words_be, const Codes& codes, std::size_t block_elements,
                     std::size_t count, std::uint32_t contributors, Bytes& out, double divisor, std::size_t skip) {
  require_codes(codec, codes, count, block_elements);
  require(static_cast<std::size_t>(words_be.size()) == words_for(codec, count) * 4, "words_be has the wrong length");
  const std::size_t keep = element_count(codec, out);
  require(skip + keep <= count, "out reaches beyond the chunk");
  dequantize(codec, words_be.data(), count, block_elements, codes.data(), contributors, divisor, skip, keep,
             out.mutable_data());
}

Residual::value_type residual_after(const FixedPoint& codec, const Bytes& x, const Codes& codes,
                                    std::size_t block_elements, double factor, const Residual& residual) {
  const std::size_t n = element_count(codec, x);
  require_codes(codec, codes, n, block_elements);
  Residual::value_type after(static_cast<py::ssize_t>(n));
  const float* before = residual_of(residual, n);
  std::memset(after.mutable_data(), 0, n * sizeof(float));
  if (before != nullptr) std::memcpy(after.mutable_data(), before, n * sizeof(float));
  update_residual(codec, x.data(), n, block_elements, codes.data(), factor, after.mutable_data());
  return after;
}

// The inputs of one call, all as long as the first; holds references to them while the call runs.
struct Inputs {
  std::vector<Bytes> held;
  std::vector<const std::uint8_t*> words_be;

  explicit Inputs(const py::args& inputs) {
    require(!inputs.empty() && inputs.size() <= MAX_ADDED, "one to four inputs are added at once");
    for (const py::handle& each : inputs) {
      held.push_back(py::cast<Bytes>(each));
      require(held.back().size() == held.front().size() && held.back().size() % 4 == 0, "inputs differ in length");
      words_be.push_back(held.back().data());
    }
  }

  std::size_t bytes() const { return static_cast<std::size_t>(held.front().size()); }
};

void add(Bytes& sum_be, const py::args& args, bool starts) {
  const Inputs in(args);
  require(static_cast<std::size_t>(sum_be.size()) == in.bytes(), "sum and words differ in length");
  add_words(sum_be.mutable_data(), in.words_be.data(), in.words_be.size(), in.bytes() / 4, starts);
}

// Accumulators for contributions of `words` words, in a buffer of the test; each has `bytes_each` bytes, 2 or 4.
LaneSums lane_sums(Bytes& sums, std::uint32_t bytes_each, std::uint8_t lanes, std::size_t words) {
  const Header header{.kind = Kind::contribution, .lanes = lanes};
  require(lanes != 0 && legal_lanes(header) && (bytes_each == 2 || bytes_each == 4), "no lanes that are added up");
  require(static_cast<std::size_t>(sums.size()) == words * 32 / lane_bits_up(lanes) * bytes_each, "wrong accumulators");
  return {sums.mutable_data(), bytes_each};
}

std::uint32_t accumulate(Bytes& sums, std::uint32_t bytes_each, std::uint8_t lanes, const py::args& args, bool first) {
  const Inputs in(args);
  const LaneSums at = lane_sums(sums, bytes_each, lanes, in.bytes() / 4);
  return accumulate_lanes(at, lanes, in.words_be.data(), in.words_be.size(), in.bytes(), first);
}

std::uint32_t narrow(Bytes& sums, std::uint32_t bytes_each, std::uint8_t lanes, std::uint32_t most, Bytes& out) {
  const std::size_t bytes = static_cast<std::size_t>(out.size()) * lane_bits_up(lanes) / lane_bits_down(lanes);
  return narrow_lanes(lane_sums(sums, bytes_each, lanes, bytes / 4), lanes, bytes, most, out.mutable_data());
}

void bind_codec(py::module_& module) {
  py::class_<FixedPoint>(module, "Codec")
      .def(py::init([](int element, std::uint32_t lanes, std::uint32_t contributions) {
             require(element >= 0 && element <= static_cast<int>(Element::uint8),
                     "element is none of fanin.numerics.reduction");
             return FixedPoint(static_cast<Element>(element), lanes, contributions);
           }),
           py::arg("element"), py::arg("lanes") = 32, py::arg("contributions") = 1)
      .def_readonly("lanes", &FixedPoint::lanes)
      .def_readonly("contributions", &FixedPoint::contributions)
      .def_readonly("bound", &FixedPoint::bound)
      .def_readonly("exponent", &FixedPoint::exponent)
      .def("words_for", &words_for, py::arg("count"))
      .def("elements_per_packet", &elements_per_packet, py::arg("words"))
      .def("codes", &codes_of, py::arg("x"), py::arg("block_elements"), py::arg("factor") = 1.0,
           py::arg("residual") = py::none())
      .def("quantize_into", &quantize_into, py::arg("x"), py::arg("codes"), py::arg("block_elements"),
           py::arg("words_be").noconvert(), py::arg("factor") = 1.0, py::arg("residual") = py::none())
      .def("dequantize_into", &dequantize_into, py::arg("words_be"), py::arg("codes"), py::arg("block_elements"),
           py::arg("count"), py::arg("contributors"), py::arg("out").noconvert(), py::arg("divisor") = 1.0,
           py::arg("skip") = 0)
      .def("residual_after", &residual_after, py::arg("x"), py::arg("codes"), py::arg("block_elements"),
           py::arg("factor") = 1.0, py::arg("residual") = py::none());
}

void exact_encode_into(int element, const Bytes& x, Bytes& words_be, double factor, const Residual& residual) {
  const Element of = element_from_python(element);
  const std::size_t n = static_cast<std::size_t>(x.size()) / element_bytes(of);
  require(static_cast<std::size_t>(words_be.size()) == exact_words(of, n) * 4, "words_be has the wrong length");
  exact_encode(of, x.data(), n, factor, residual_of(residual, n), words_be.mutable_data());
}

Residual::value_type exact_residual_after(int element, const Bytes& x, double factor, const Residual& residual) {
  const Element of = element_from_python(element);
  const std::size_t n = static_cast<std::size_t>(x.size()) / element_bytes(of);
  require(residual.has_value(), "there is no residual");
  Residual::value_type after(static_cast<py::ssize_t>(n));
  std::memcpy(after.mutable_data(), residual_of(residual, n), n * sizeof(float));
  exact_residual(of, x.data(), n, factor, after.mutable_data());
  return after;
}

void exact_decode_into(int element, int with, std::uint32_t ranks, const Bytes& words_be, std::size_t count, Bytes& out,
                       double divisor, std::size_t skip, std::uint32_t present) {
  const Element of = element_from_python(element);
  const std::size_t keep = static_cast<std::size_t>(out.size()) / element_bytes(of);
  const Parts parts = {.element = of,
                       .ranks = ranks,
                       .present = present,
                       .part_bytes = exact_words(of, count) * 4,
                       .words_be = words_be.data()};
  require(static_cast<std::size_t>(words_be.size()) == ranks * parts.part_bytes, "words_be has the wrong length");
  require(skip + keep <= count, "out reaches beyond the elements");
  exact_decode(parts, operator_from_python(with), divisor, skip, keep, out.mutable_data());
}

void bind_exact(py::module_& module) {
  module.def("exact_encode_into", &exact_encode_into, py::arg("element"), py::arg("x"), py::arg("words_be").noconvert(),
             py::arg("factor") = 1.0, py::arg("residual") = py::none());
  module.def("exact_residual_after", &exact_residual_after, py::arg("element"), py::arg("x"), py::arg("factor"),
             py::arg("residual"));
  module.def("exact_decode_into", &exact_decode_into, py::arg("element"), py::arg("operator"), py::arg("ranks"),
             py::arg("words_be"), py::arg("count"), py::arg("out").noconvert(), py::arg("divisor") = 1.0,
             py::arg("skip") = 0, py::arg("present") = 0xFFFFFFFFu);
}

using Floats = py::array_t<float, py::array::c_style>;

void hadamard_in_place(Floats& x, std::size_t block) {
  const auto count = static_cast<std::size_t>(x.size());
  require(block > 0 && (block & (block - 1)) == 0 && count % block == 0, "x must be whole blocks of a power of two");
  float* const data = x.mutable_data();
  const py::gil_scoped_release others_run;
  hadamard(data, count, block);
}

void philox_into(std::array<std::uint32_t, 2> key, std::array<std::uint32_t, 4> counter, Words& words) {
  std::uint32_t* const data = words.mutable_data();
  const auto count = static_cast<std::size_t>(words.size());
  const py::gil_scoped_release others_run;
  philox(key.data(), counter.data(), data, count);
}

using Flags = py::array_t<bool, py::array::c_style>;
using SignWords = py::array_t<std::uint32_t, py::array::c_style>;

std::size_t blocks_of(std::size_t count, std::size_t block) {
  require(block > 0, "block must be positive");
  return (count + block - 1) / block;
}

void block_squares_into(const Floats& x, std::size_t block, Floats& squares) {
  const auto count = static_cast<std::size_t>(x.size());
  require(static_cast<std::size_t>(squares.size()) == blocks_of(count, block), "squares must have one for each block");
  const float* const data = x.data();
  float* const found = squares.mutable_data();
  const py::gil_scoped_release others_run;
  block_squares(data, count, block, found);
}

void nonzero_blocks_into(const Floats& x, std::size_t block, Flags& nonzero) {
  const auto count = static_cast<std::size_t>(x.size());
  require(static_cast<std::size_t>(nonzero.size()) == blocks_of(count, block), "nonzero must have one for each block");
  const float* const data = x.data();
  bool* const found = nonzero.mutable_data();
  const py::gil_scoped_release others_run;
  nonzero_blocks(data, count, block, found);
}

// x and signs as in host/codecs/rotation.py; the arrays of blocks have `padded` elements.
Rotation rotation_of(std::size_t count, std::size_t padded, const SignWords& signs, std::size_t block) {
  require(block > 0 && (block & (block - 1)) == 0 && padded == blocks_of(count, block) * block,
          "x must be in blocks of a power of two, the last one filled with zeros");
  require(static_cast<std::size_t>(signs.size()) >= (count + 31) / 32, "too few signs");
  return {signs.data(), block, count};
}

void rotate_and_clip_into(const Floats& x, const SignWords& signs, std::size_t block, const Floats& owed, float clip,
                          Floats& sent, Floats& cut, Floats& squares) {
  const auto padded = static_cast<std::size_t>(sent.size());
  const Rotation rotation = rotation_of(static_cast<std::size_t>(x.size()), padded, signs, block);
  require(owed.size() == 0 || static_cast<std::size_t>(owed.size()) == padded, "owed must have as many as sent");
  require(static_cast<std::size_t>(cut.size()) == padded, "cut must have as many as sent");
  require(static_cast<std::size_t>(squares.size()) == padded / block, "squares must have one for each block");
  const float* const given = x.data();
  const float* const before = owed.size() == 0 ? nullptr : owed.data();
  float *const out = sent.mutable_data(), *const left = cut.mutable_data(), *const found = squares.mutable_data();
  const py::gil_scoped_release others_run;
  rotate_and_clip(rotation, given, before, clip, out, left, found);
}

void rotate_back_into(Floats& mean, const SignWords& signs, std::size_t block, const Floats& lost, Floats& owed,
                      Floats& squares, Floats& x) {
  const auto padded = static_cast<std::size_t>(mean.size());
  const Rotation rotation = rotation_of(static_cast<std::size_t>(x.size()), padded, signs, block);
  require(static_cast<std::size_t>(lost.size()) == padded && static_cast<std::size_t>(owed.size()) == padded,
          "lost and owed must have as many as mean");
  require(static_cast<std::size_t>(squares.size()) == padded / block, "squares must have one for each block");
  const float* const added = lost.data();
  float *const summed = mean.mutable_data(), *const left = owed.mutable_data(), *const found = squares.mutable_data();
  float* const out = x.mutable_data();
  const py::gil_scoped_release others_run;
  rotate_back(rotation, summed, added, left, found, out);
}

ShiftedGrid shifted_grid(std::size_t count, std::size_t bucket, unsigned bits, py::ssize_t encoded_bytes) {
  require(bucket > 0 && bucket % 8 == 0 && (bits == 8 || bits == 6 || bits == 4), "no such grid");
  const ShiftedGrid grid = {count, bucket, bits};
  require(static_cast<std::size_t>(encoded_bytes) == grid.encoded_bytes(), "the codes have the wrong length");
  return grid;
}

std::pair<double, double> shifted_encode_into(const Floats& x, std::size_t bucket, unsigned bits, const Floats& shifts,
                                              Bytes& into) {
  const ShiftedGrid grid = shifted_grid(static_cast<std::size_t>(x.size()), bucket, bits, into.size());
  require(static_cast<std::size_t>(shifts.size()) == grid.buckets(), "shifts must have one for each bucket");
  const float *const given = x.data(), *const drawn = shifts.data();
  std::uint8_t* const out = into.mutable_data();
  const py::gil_scoped_release others_run;
  const ShiftedLoss loss = shifted_encode(grid, given, drawn, out);
  return {loss.energy, loss.lost};
}

// Decodes the elements from `first` on for each rank: from its row of `encoded` to its row of `out`, which may be
// strided.
void shifted_decode_into(const py::array_t<std::uint8_t>& encoded, std::size_t count, std::size_t bucket, unsigned bits,
                         std::size_t first, py::array_t<float>& out) {
  require(encoded.ndim() == 2 && out.ndim() == 2 && encoded.shape(0) == out.shape(0), "a row for each rank, in both");
  const ShiftedGrid grid = shifted_grid(count, bucket, bits, encoded.shape(1));
  const auto keep = static_cast<std::size_t>(out.shape(1));
  require(first <= count && keep <= count - first, "out reaches beyond the last element");
  if (out.size() == 0) return;  // strides of an empty array have no meaning
  require(encoded.strides(1) == 1 && out.strides(1) == sizeof(float), "the elements of a row must lie in a row");
  const auto rows = static_cast<std::size_t>(out.shape(0));
  const std::ptrdiff_t encoded_stride = encoded.strides(0), out_stride = out.strides(0);
  require(out_stride % static_cast<std::ptrdiff_t>(alignof(float)) == 0, "a row must begin where a float can");
  const std::uint8_t* given = encoded.data();
  float* values = out.mutable_data();
  const bool streams = rows * keep * sizeof(float) >= STREAMED_BYTES;
  const py::gil_scoped_release others_run;
  for (std::size_t row = 0; row < rows; ++row) {
    shifted_decode(grid, given, first, keep, values, streams);
    given += encoded_stride;
    values += out_stride / static_cast<std::ptrdiff_t>(sizeof(float));
  }
}

// Tags of datagrams, computed in one call, each with its key of 16 bytes, all in the same direction.
std::vector<std::uint32_t> tags_of(const std::vector<py::bytes>& keys, const std::vector<py::bytes>& datagrams,
                                   bool to_switch, const std::string& algorithm) {
  require(keys.size() == datagrams.size(), "each datagram has a key");
  std::vector<TagKey> read;
  std::vector<Tagged> asked;
  read.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::string_view key = keys[i], data = datagrams[i];
    require(data.size() >= HEADER_BYTES, "a datagram has its header");
    if (i == 0 || key != std::string_view(keys[i - 1])) read.emplace_back(secret_key_from_python(key, algorithm));
    asked.push_back({&read.back(),
                     {reinterpret_cast<const std::uint8_t*>(data.data()), data.size()},
                     to_switch ? Direction::to_switch : Direction::from_switch});
  }
  std::vector<std::uint32_t> tags(asked.size());
  packet_tags(asked, tags.data());
  return tags;
}

void bind_gradient_kernels(py::module_& module) {
  module.def("shifted_encode_into", &shifted_encode_into, py::arg("x").noconvert(), py::arg("bucket"), py::arg("bits"),
             py::arg("shifts").noconvert(), py::arg("into").noconvert());
  module.def("shifted_decode_into", &shifted_decode_into, py::arg("encoded").noconvert(), py::arg("count"),
             py::arg("bucket"), py::arg("bits"), py::arg("first"), py::arg("out").noconvert());
  module.def("block_squares_into", &block_squares_into, py::arg("x").noconvert(), py::arg("block"),
             py::arg("squares").noconvert());
  module.def("nonzero_blocks_into", &nonzero_blocks_into, py::arg("x").noconvert(), py::arg("block"),
             py::arg("nonzero").noconvert());
  module.def("rotate_and_clip_into", &rotate_and_clip_into, py::arg("x").noconvert(), py::arg("signs").noconvert(),
             py::arg("block"), py::arg("owed").noconvert(), py::arg("clip"), py::arg("sent").noconvert(),
             py::arg("cut").noconvert(), py::arg("squares").noconvert());
  module.def("rotate_back_into", &rotate_back_into, py::arg("mean").noconvert(), py::arg("signs").noconvert(),
             py::arg("block"), py::arg("lost").noconvert(), py::arg("owed").noconvert(), py::arg("squares").noconvert(),
             py::arg("x").noconvert());
  module.def("hadamard_in_place", &hadamard_in_place, py::arg("x").noconvert(), py::arg("block"));
  module.def("philox_into", &philox_into, py::arg("key"), py::arg("counter"), py::arg("words").noconvert());
}

}  // namespace

void bind_kernels(py::module_& module) {
  bind_gradient_kernels(module);
  bind_codec(module);
  bind_exact(module);
  module.def("add_words", &add, py::arg("sum_be").noconvert(), py::arg("starts") = false);
  module.def("accumulate_lanes", &accumulate, py::arg("sums").noconvert(), py::arg("bytes_each"), py::arg("lanes"),
             py::arg("first"));
  module.def("narrow_lanes", &narrow, py::arg("sums").noconvert(), py::arg("bytes_each"), py::arg("lanes"),
             py::arg("most"), py::arg("words_be").noconvert());
  module.def(
      "max_codes",
      [](Bytes& codes_be, const Bytes& in_be) {
        require(codes_be.size() == in_be.size() && in_be.size() % 2 == 0, "the codes differ in length");
        max_codes(codes_be.mutable_data(), in_be.data(), static_cast<std::size_t>(in_be.size()) / 2);
      },
      py::arg("codes_be").noconvert(), py::arg("in_be"));
  module.def(
      "crc32",
      [](const Bytes& data, std::uint32_t start) {
        return crc32(data.data(), static_cast<std::size_t>(data.size()), start);
      },
      py::arg("data"), py::arg("start") = 0);
  module.def("packet_tags", &tags_of, py::arg("keys"), py::arg("datagrams"), py::arg("to_switch"),
             py::arg("algorithm") = "siphash");
  module.def("tag_algorithms", [] {
    std::vector<std::string> names = {"siphash"};
    if (gcm_siv_runs_here()) names.insert(names.begin(), "gcm-siv");
    return names;
  });
  module.def("word_codecs", [] {
    std::vector<std::string> names;
    for (const CodecEntry* entry : codec_table()) names.emplace_back(entry->name);
    return names;
  });
  module.def("kernels_in_use", &kernels_in_use);
  module.def("use_kernels", [](const std::string& name) { return use_kernels(name.c_str()); }, py::arg("name"));
}

}  // namespace fanin
