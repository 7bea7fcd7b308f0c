// A switch with two jobs that gets any datagrams from anybody: no input makes it read or write out of bounds, and it
// never replies with more bytes than it got, apart from a notice's 8.
#include "machine/switch_machine.hpp"

#include <cstdlib>

#include "input.hpp"

namespace {

using namespace fanin;

constexpr std::uint32_t GENERATION = 7;
constexpr std::uint64_t POOL_BYTES = 1 << 20;
constexpr std::uint32_t WORKERS = 3;

struct ReadingSink : SwitchSink {
  void send(std::span<const std::uint8_t> datagram, std::span<const Address> destinations) override {
    std::uint32_t sum = destinations.empty() ? 0 : destinations.back();
    for (const std::uint8_t byte : datagram) sum += byte;
    read = sum;
    if (!parse(datagram).ok()) std::abort();
  }
  volatile std::uint32_t read = 0;
};

enum class Guard : std::uint8_t { none, checksums, tags };

JobSpec job(std::uint16_t index, std::uint32_t staleness, Guard guard) {
  JobSpec spec;
  spec.job = index;
  spec.generation = GENERATION;
  spec.workers = spec.total_workers = WORKERS;
  spec.quorum = staleness ? 2 : WORKERS;
  spec.staleness = staleness;
  spec.slots = 4;
  spec.words_per_packet = 16;
  spec.codes_per_packet = 2;
  spec.tokens = {1, 2, 3};
  spec.accumulators = true;
  spec.checksum = guard == Guard::checksums;
  if (guard == Guard::tags) spec.data_key = SecretKey{{1, 2}};
  return spec;
}

// The HELLO that registers a worker: its token in the first two words, padded to a whole packet.
std::vector<std::uint8_t> hello(std::uint16_t index, std::uint8_t worker) {
  std::vector<std::uint8_t> bytes(datagram_bytes(2, 16));
  store_header(bytes.data(),
               {.kind = Kind::hello, .job = index, .worker = worker, .generation = GENERATION, .bitmap = HELLO_RUNS});
  store_be32(bytes.data() + HEADER_BYTES + WORD_BYTES, worker + 1u);
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  SwitchMachine machine(POOL_BYTES);
  ReadingSink sink;
  double now = 0;
  machine.admit(job(0, 0, Guard::none));
  machine.admit(job(1, 1, static_cast<Guard>(input.below(3))));
  for (std::uint8_t worker = 0; worker < WORKERS; worker++) machine.receive_datagram(hello(0, worker), worker, now);
  while (!input.empty()) {
    const std::uint32_t action = input.below(10);
    if (action < 6) {
      machine.receive_datagram(input.plausible(GENERATION, 6), input.below(4), now);
    } else if (action < 7) {
      machine.receive_datagram(input.raw(), input.below(4), now);
    } else if (action < 8) {
      machine.datagrams_to_send(now, sink);
    } else if (action < 9) {
      now += 0.25 * input.byte();
      machine.handle_timer(now);
    } else {
      machine.evict(static_cast<std::uint16_t>(input.below(2)), input.below(WORKERS), now);
    }
    while (machine.next_event()) {
    }
  }
  machine.datagrams_to_send(now, sink);
  return 0;
}
