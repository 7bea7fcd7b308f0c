// Replies of a switch to workers: results, answers, and notices of refusals and of lost members.
#include <algorithm>
#include <array>

#include "kernels/checksum.hpp"
#include "machine/switch_machine_state.hpp"

namespace fanin {

namespace {

constexpr std::size_t NOTICE_WORDS = 2;

// Header of a reply to `header`: same job, worker, generation, slot and base; a checksum if that packet has one.
Header reply_to(const Header& header, Kind kind) {
  return {.kind = kind,
          .job = header.job,
          .worker = header.worker,
          .flags = static_cast<std::uint8_t>(header.flags & FLAG_CHECKSUM),
          .generation = header.generation,
          .slot = header.slot,
          .base = header.base};
}

// Writes a result without its words to `datagram`; `bare`: header and codes of the result in the ring.
void make_bare(std::span<const std::uint8_t> bare, std::span<std::uint8_t> datagram) {
  std::ranges::copy(bare, datagram.begin());
  datagram[OFFSET_FLAGS] |= FLAG_BARE;
  datagram[OFFSET_LANES] = 0;
  store_be32(datagram.data() + OFFSET_CHECKSUM, 0);
}

void finish(std::span<std::uint8_t> datagram) {
  if ((datagram[OFFSET_FLAGS] & FLAG_CHECKSUM) != 0) seal(datagram);
}

}  // namespace

void write_news(std::span<std::uint8_t> datagram, const Header& header, std::uint32_t lost, std::uint32_t left) {
  store_header(datagram.data(), header);
  std::fill(datagram.begin() + HEADER_BYTES, datagram.end(), std::uint8_t{0});
  store_be32(datagram.data() + HEADER_BYTES, lost);
  store_be32(datagram.data() + HEADER_BYTES + WORD_BYTES, left);
  finish(datagram);
}

// Whether the queue has room; counts accordingly.
bool SwitchMachine::State::takes(SwitchTally& tally, std::size_t bytes, std::size_t destinations) {
  if (destinations == 0) return false;
  if (!queue.takes(bytes)) {
    tally.unsent += destinations;
    return false;
  }
  tally.packets_out += destinations;
  tally.bytes_out += bytes * destinations;
  return true;
}

void SwitchMachine::State::echo_bye(SwitchJob& job, std::span<const std::uint8_t> bye, Address source) {
  if (!takes(job.tally, bye.size(), 1)) return;
  const std::span<std::uint8_t> datagram = queue.push(bye.size(), {&source, 1});
  std::ranges::copy(bye, datagram.begin());
  job.keys.finish(datagram);
}

void SwitchMachine::State::echo(std::span<const std::uint8_t> probe, Address source) {
  if (!takes(past, probe.size(), 1)) return;
  const std::span<std::uint8_t> datagram = queue.push(probe.size(), {&source, 1});
  std::ranges::copy(probe, datagram.begin());
  datagram[OFFSET_KIND] = static_cast<std::uint8_t>(Kind::echo);
  store_be32(datagram.data() + OFFSET_CHECKSUM, 0);
  finish(datagram);
}

void SwitchMachine::State::multicast(SwitchJob& job, std::uint32_t slot, std::uint32_t number) {
  ++job.tally.rounds;
  job.parities[slot / WORD_BITS] ^= std::uint32_t{1} << slot % WORD_BITS;
  const std::span<std::uint8_t> datagram = job.ring.result(slot, number);
  const TagKey* const key = job.keys.of_everybody();
  const std::uint32_t bare = job.ring.bare(slot);
  const std::span<const std::uint8_t> without_words = bare == 0 ? datagram : job.ring.bare_result(slot, number);
  if (without_words.size() == datagram.size()) {  // to everybody, as it is
    if (takes(job.tally, datagram.size(), job.listener_count))
      queue.push_in_place(datagram, key, job.ring.queue_mark(slot, number), job.audience());
    return;
  }
  std::array<Address, MAX_WORKERS> numbers;
  const std::size_t keepers = job.audience_but(bare, numbers);
  const std::span<const Address> others(numbers.data() + keepers, job.listener_count - keepers);
  if (takes(job.tally, datagram.size(), keepers))
    queue.push_in_place(datagram, key, job.ring.queue_mark(slot, number), {numbers.data(), keepers});
  const bool runs = job.runs(bare);
  if (runs && lengthen_run(job, without_words, others)) return;
  const std::size_t bytes = without_words.size();
  if (!takes(job.tally, bytes, others.size())) return;
  const std::size_t most_bytes = bytes + (MAX_RUN - 1) * (bytes - HEADER_BYTES);
  const std::span<std::uint8_t> copy =
      runs ? queue.push_run(bytes, most_bytes, key, others) : queue.push(bytes, others);
  make_bare(without_words, copy);
  finish(copy);
  if (!runs) job.keys.finish(copy);
}

// Adds a bare result to the latest queued one, if they form a run; `bare`: header and codes of the result in the ring.
bool SwitchMachine::State::lengthen_run(SwitchJob& job, std::span<const std::uint8_t> bare,
                                        std::span<const Address> destinations) {
  const std::span<std::uint8_t> before = queue.run(destinations);
  if (before.empty()) return false;
  Header next = load_header(bare.data());
  next.flags |= FLAG_BARE;
  next.lanes = 0;
  const std::optional<Header> run = with_next(load_header(before.data()), next, job.spec.slots);
  const std::span<const std::uint8_t> codes = bare.subspan(HEADER_BYTES);
  if (!run) return false;
  job.tally.bytes_out += codes.size() * destinations.size();
  const std::span<std::uint8_t> datagram = queue.lengthen_run(codes.size());
  std::ranges::copy(codes, datagram.end() - static_cast<std::ptrdiff_t>(codes.size()));
  store_header(datagram.data(), *run);
  finish(datagram);
  return true;
}

// Sends an answer, with the result if the request was as long, else bare, so that forged sources cannot amplify.
void SwitchMachine::State::answer(SwitchJob& job, const Header& header, std::size_t asked_bytes, Address source) {
  ++job.tally.answers;
  const std::uint32_t arrived = job.ring.arrived(header.slot, header.base);
  const std::span<const std::uint8_t> result = job.ring.result(header.slot, header.base);
  const std::span<const std::uint8_t> without_words = job.ring.bare_result(header.slot, header.base);
  const bool bare = (header.flags & FLAG_BARE) != 0 && without_words.size() != result.size();
  const std::size_t bytes = bare ? without_words.size() : result.size();
  if (bytes > asked_bytes) return answer_bare(job, header, header.base, arrived, source);
  if (!takes(job.tally, bytes, 1)) return;
  const std::span<std::uint8_t> datagram = queue.push(bytes, {&source, 1});
  if (bare)
    make_bare(without_words, datagram);
  else
    std::ranges::copy(result, datagram.begin());
  datagram[OFFSET_KIND] = static_cast<std::uint8_t>(Kind::answer);
  datagram[OFFSET_WORKER] = header.worker;
  store_be32(datagram.data() + OFFSET_BITMAP, arrived);
  finish(datagram);
  job.keys.finish(datagram);
}

// Sends the worker a receipt of its transmissions, in reply to this one.
void SwitchMachine::State::receipt(SwitchJob& job, const Header& header, std::size_t asked_bytes, bool repeated,
                                   Address source) {
  ++job.tally.receipts;
  std::size_t bytes = datagram_bytes(0, job.parities.size());
  // R-RECEIPT-8: with staleness, one bit cannot tell which round is the worker's.
  if (job.spec.max_staleness != 0 || bytes > asked_bytes) bytes = HEADER_BYTES;
  if (!takes(job.tally, bytes, 1)) return;
  const Arrivals& arrivals = job.arrivals[header.worker];
  Header told = reply_to(header, Kind::receipt);
  told.slot = header.bitmap;
  told.base = job.ascents ? job.ascents->round_trip_us() : 0;  // R-LEAF-9
  told.signature = arrivals.highest();
  told.bitmap = arrivals.received();
  told.contributors = static_cast<std::uint16_t>((repeated ? RECEIPT_REPEATED : 0) |
                                                 (job.has(job.marked, header.worker) ? RECEIPT_MARKED : 0));
  job.marked &= ~(std::uint32_t{1} << header.worker);
  const std::span<std::uint8_t> datagram = queue.push(bytes, {&source, 1});
  store_header(datagram.data(), told);
  for (std::size_t at = HEADER_BYTES, word = 0; at < bytes; at += WORD_BYTES)
    store_be32(datagram.data() + at, job.parities[word++]);
  finish(datagram);
  job.keys.finish(datagram);
}

// Sends the base that the worker has to contribute next, as a bare answer that acknowledges nothing.
void SwitchMachine::State::tell_where(SwitchJob& job, const Header& header, Address source) {
  ++job.tally.answers;
  answer_bare(job, header, job.ring.stands(header.slot, header.worker), 0, source);
}

void SwitchMachine::State::answer_bare(SwitchJob& job, const Header& header, std::uint32_t base, std::uint32_t bitmap,
                                       Address source) {
  if (!takes(job.tally, HEADER_BYTES, 1)) return;
  Header bare = reply_to(header, Kind::answer);
  bare.base = base;
  bare.bitmap = bitmap;
  bare.flags = static_cast<std::uint8_t>(FLAG_BARE | (job.spec.checksum ? FLAG_CHECKSUM : 0));
  const std::span<std::uint8_t> datagram = queue.push(HEADER_BYTES, {&source, 1});
  store_header(datagram.data(), bare);
  finish(datagram);
  job.keys.finish(datagram);
}

void SwitchMachine::State::refuse(SwitchTally& tally, const SwitchJob* job, Reason reason, const Header& header,
                                  Address source) {
  tally.drop(reason);
  // Tagged NOTICEs go to registered addresses only: somebody who replays a worker's HELLO would otherwise be given a
  // NOTICE with which to end that worker.
  const bool proved = job != nullptr && job->keys.tags() && reason != Reason::generation;
  if (!TOLD_BY_NOTICE[static_cast<std::size_t>(reason)] || (proved && reason == Reason::stranger)) return;
  ++tally.notices;
  constexpr std::size_t bytes = datagram_bytes(0, NOTICE_WORDS);
  if (!takes(tally, bytes, 1)) return;
  Header notice = reply_to(header, Kind::notice);
  notice.contributors = static_cast<std::uint16_t>(reason);
  const std::span<std::uint8_t> datagram = queue.push(bytes, {&source, 1});
  write_news(datagram, notice, job != nullptr ? job->lost : 0, job != nullptr ? job->left : 0);
  if (proved) job->keys.finish(datagram);
}

void SwitchMachine::State::tell(SwitchJob& job, Reason reason, std::uint8_t worker,
                                std::span<const Address> destinations) {
  job.tally.notices += destinations.size();
  constexpr std::size_t bytes = datagram_bytes(0, NOTICE_WORDS);
  if (!takes(job.tally, bytes, destinations.size())) return;
  const Header notice = {.kind = Kind::notice,
                         .job = job.spec.job,
                         .worker = worker,
                         .flags = job.spec.checksum ? FLAG_CHECKSUM : std::uint8_t{0},
                         .generation = job.spec.generation,
                         .signature = job.changes,
                         .bitmap = job.spec.survives_loss ? job.registered : 0,
                         .contributors = static_cast<std::uint16_t>(reason)};
  const std::span<std::uint8_t> datagram = queue.push(bytes, destinations);
  write_news(datagram, notice, job.lost, job.left);
  job.keys.finish(datagram);
}

void SwitchMachine::State::welcome(SwitchJob& job, const Parsed& hello, Address source) {
  const std::size_t bytes = datagram_bytes(0, hello.word_count);
  if (!takes(job.tally, bytes, 1)) return;
  Header header = reply_to(hello.header, Kind::welcome);
  header.signature = job.changes;
  header.contributors = static_cast<std::uint16_t>(job.uplink ? job.uplink->news() : Reason{});
  header.bitmap = job.registered;
  if (job.has(job.takes_runs, hello.header.worker)) header.flags |= FLAG_RUN;
  const std::span<std::uint8_t> datagram = queue.push(bytes, {&source, 1});
  write_news(datagram, header, job.lost, job.left);
  job.keys.finish(datagram);
}

}  // namespace fanin
