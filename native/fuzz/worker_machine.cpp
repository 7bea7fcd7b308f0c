// A worker in the middle of a reduction that gets any datagrams from its switch's address: nothing is read or written
// out of bounds, and no memory changes outside the result.
#include "machine/worker_machine.hpp"

#include <cstdlib>
#include <memory>
#include <vector>

#include "input.hpp"

namespace {

using namespace fanin;

constexpr std::uint32_t GENERATION = 7;
constexpr Address SWITCH = 9;
constexpr std::uint64_t TOKEN = 1;

// A sink in which every datagram has memory of exactly its length.
struct ExactSink : WorkerSink {
  std::span<std::uint8_t> reserve(std::size_t bytes) override {
    memory = std::make_unique<std::uint8_t[]>(bytes);
    return {memory.get(), bytes};
  }
  void commit(std::size_t bytes) override {
    length = bytes;
    if (!parse(last()).ok()) std::abort();
  }
  std::span<std::uint8_t> last() override { return {memory.get(), length}; }
  std::unique_ptr<std::uint8_t[]> memory;
  std::size_t length = 0;
};

JobSpec job() {
  JobSpec spec;
  spec.generation = GENERATION;
  spec.workers = spec.total_workers = 2;
  spec.quorum = 2;
  spec.slots = 4;
  spec.window_items = std::uint64_t{WINDOW_POOLS} * spec.slots;
  spec.words_per_packet = 16;
  spec.codes_per_packet = 2;
  spec.tokens = {TOKEN, 2};
  spec.accumulators = true;
  return spec;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  std::vector<std::vector<std::uint8_t>> tensors;  // outlives the machine, which reads and writes them
  WorkerMachine machine(job(), 0, SWITCH, TOKEN);
  ExactSink sink;
  double now = 0;
  machine.datagrams_to_send(now, sink);

  std::vector<std::uint8_t> welcome(datagram_bytes(2, 16));
  store_header(welcome.data(),
               {.kind = Kind::welcome, .worker = 0, .flags = FLAG_RUN, .generation = GENERATION, .bitmap = 3});
  machine.receive_datagram(welcome, SWITCH, now);
  while (!input.empty() && !machine.failed()) {
    const std::uint32_t action = input.below(10);
    if (action < 6) {
      machine.receive_datagram(input.plausible(GENERATION, 6), SWITCH, now);
    } else if (action < 7) {
      machine.receive_datagram(input.raw(), input.below(2) ? SWITCH : SWITCH + 1, now);
    } else if (action < 8) {
      machine.datagrams_to_send(now, sink);
    } else if (action < 9) {
      now += 0.01 * input.byte();
      machine.handle_timer(now);
    } else if (tensors.size() < 4) {
      constexpr std::uint32_t LANES[] = {32, 16, 8, 4, 96 + 15, 96 + 11, 96 + 10, 96 + 7, 96 + 6};
      Reduction reduction;
      reduction.element = static_cast<Element>(input.below(8));
      reduction.lanes =
          is_floating(reduction.element) && reduction.element != Element::float64 ? LANES[input.below(9)] : 32;
      reduction.count = input.byte();
      reduction.keep_count = reduction.count;
      tensors.emplace_back(reduction.count * element_bytes(reduction.element));
      reduction.source = reduction.destination = tensors.back().data();
      machine.submit(reduction);
    }
    while (machine.next_event()) {
    }
  }
  return 0;
}
