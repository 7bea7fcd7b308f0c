// Packets that a worker machine sends: HELLOs, passes and contributions. Its state is in worker_machine_state.hpp.
#include <algorithm>
#include <cstring>

#include "kernels/checksum.hpp"
#include "kernels/floating_point.hpp"
#include "machine/worker_machine_state.hpp"

namespace fanin {

void WorkerMachine::State::send(double now, WorkerSink& sink) {
  const DefaultFloatingPoint arithmetic;  // of all kernels
  joinable_ = false;
  if (presence_.hello_due(now)) {
    const std::span<const std::size_t> questions = path_questions(now);
    if (!send_hello(sink, phase() == Phase::connecting ? packet_bytes_ : datagram_bytes(0, 2))) return;
    presence_.hello_sent(now);
    for (const std::size_t bytes : questions) {
      if (!send_hello(sink, bytes)) return;
      presence_.probe_sent();
    }
  }
  if (presence_.bye_due(now)) {
    if (!send_token(sink, header(Kind::bye), datagram_bytes(0, 2))) return;
    presence_.bye_sent(now);
  }
  if (phase() != Phase::member) return;  // R-MEMBER-1: HELLO alone before WELCOME
  // R-MEMBER-15, before contributions: a newcomer's slots take none until they are in step.
  while (catch_up_) {
    const std::optional<std::uint32_t> slot = catch_up_->next();
    if (!slot) break;
    if (!send_pass(sink, *slot)) return;
    catch_up_->take();
    if (!recovery_.sent(*slot, now)) ++counters_.retransmissions;
  }
  const double round_trip_s = congestion_.paced_round_trip(recovery_.timer.smoothed_s);
  Contributions run;
  std::uint32_t slot;
  while ((slot = stream_.next()) != ItemStream::NONE && sendable(slot)) {
    const bool first = !recovery_.was_sent(slot);
    // R-CONGESTION-13: a pass is short, and results for passes come at the pace of the contributors.
    const Operation& operation = stream_.operation(slot);
    const bool paced = !(first && !operation.plain() && operation.passes(stream_.current(slot)));
    if (first && paced && !congestion_.may_send(round_trip_s, now)) {
      ++counters_.paced;
      break;
    }
    if (!(continues(run, slot) ? send_next(sink, slot, run) : send_contribution(sink, slot, run))) return;
    stream_.take(slot);
    if (paced) congestion_.sent(round_trip_s, now);
    // The grace for departed peers begins here, since no result was awaited before.
    if (recovery_.idle()) moved_at_ = now;
    if (!recovery_.sent(slot, now)) ++counters_.retransmissions;
  }
  congestion_.limited = slot != ItemStream::NONE;
}

// R-MEMBER-10: lengths of the HELLOs to send behind a heartbeat, to find out whether packets as long as needed pass.
std::span<const std::size_t> WorkerMachine::State::path_questions(double now) {
  if (phase() != Phase::member || !presence_.answered()) return {};
  std::optional<std::uint64_t> item;
  std::size_t needed_bytes = 0;
  if (stream_.unfinished() && !catch_up_) {
    item = stream_.oldest_item();
    needed_bytes = longest_packet_bytes(static_cast<std::uint32_t>(*item % spec_.slots));
  }
  const std::span<const std::size_t> questions = path_.beat(item, needed_bytes, now);
  counters_.path_questions += questions.size();
  return questions;
}

bool WorkerMachine::State::send_hello(WorkerSink& sink, std::size_t bytes) {
  Header hello = header(Kind::hello);
  hello.slot = presence_.hello_sequence();
  hello.bitmap = HELLO_RUNS;
  return send_token(sink, hello, bytes);
}

// The longer of the contribution and the result of the slot's current item.
std::size_t WorkerMachine::State::longest_packet_bytes(std::uint32_t slot) {
  const Operation& operation = stream_.operation(slot);
  const std::uint64_t item = stream_.current(slot);
  const std::size_t words = std::max(operation.word_count(item), operation.result_word_count(item));
  return datagram_bytes(operation.code_count, words + (stream_.forecasts(slot) ? AGE_WORDS : 0));
}

// Whether the slot's item may be sent now. A repetition needs no room in the window.
bool WorkerMachine::State::sendable(std::uint32_t slot) const {
  // R-CONGESTION-3: workers whose windows were full of different items would wait for each other.
  const bool oldest = stream_.current(slot) == stream_.oldest_item();
  return oldest || recovery_.was_sent(slot) || congestion_.has_room(recovery_.in_flight(), recovery_.waiting());
}

// Whether there is an item to send and the window has room for it.
bool WorkerMachine::State::sendable() {
  const std::uint32_t slot = stream_.next();
  return slot != ItemStream::NONE && sendable(slot);
}

void WorkerMachine::State::tag(std::span<const iovec> datagrams) const {
  if (!keys_.tags()) return;
  std::array<const TagKey*, TAGS_TOGETHER> keys;
  keys.fill(&keys_.own());
  std::array<std::span<std::uint8_t>, TAGS_TOGETHER> together;
  for (std::size_t first = 0; first < datagrams.size(); first += TAGS_TOGETHER) {
    const std::size_t count = std::min(datagrams.size() - first, TAGS_TOGETHER);
    for (std::size_t i = 0; i < count; ++i) {
      const iovec& datagram = datagrams[first + i];
      together[i] = {static_cast<std::uint8_t*>(datagram.iov_base), datagram.iov_len};
    }
    put_tags(std::span(keys).first(count), std::span(together).first(count), Direction::to_switch);
  }
}

// --- packets ---

inline void WorkerMachine::State::finish(const WorkerSink& sink, std::span<std::uint8_t> datagram) const {
  if (spec_.checksum) seal(datagram);
  if (!sink.tags_later()) keys_.finish(datagram);
}

inline void WorkerMachine::State::commit(WorkerSink& sink, std::span<std::uint8_t> datagram) {
  finish(sink, datagram);
  ++counters_.packets_out;
  counters_.bytes_out += datagram.size();
  sink.commit(datagram.size());
}

bool WorkerMachine::State::send_token(WorkerSink& sink, const Header& header, std::size_t bytes) {
  sink.go_ahead(false);
  const std::span<std::uint8_t> datagram = sink.reserve(bytes);
  if (datagram.empty()) return false;
  store_header(datagram.data(), header);
  std::uint8_t* const words = datagram.data() + HEADER_BYTES;
  store_be32(words, static_cast<std::uint32_t>(token_ >> 32));
  store_be32(words + WORD_BYTES, static_cast<std::uint32_t>(token_));
  std::memset(words + 2 * WORD_BYTES, 0, bytes - datagram_bytes(0, 2));
  commit(sink, datagram.first(bytes));
  return true;
}

bool WorkerMachine::State::send_pass(WorkerSink& sink, std::uint32_t slot) {
  sink.go_ahead(false);
  const std::span<std::uint8_t> datagram = sink.reserve(HEADER_BYTES);
  if (datagram.empty()) return false;
  Header pass = header(Kind::contribution);
  pass.flags |= FLAG_PASS;
  pass.slot = slot;
  pass.base = catch_up_->base_to_pass(slot);
  pass.bitmap = order();
  store_header(datagram.data(), pass);
  commit(sink, datagram.first(HEADER_BYTES));
  in_order_.sent(slot, false);
  return true;
}

inline void WorkerMachine::State::store_codes(const Operation& operation, std::uint64_t item, bool own,
                                              std::uint8_t* codes) {
  if (!own) {
    std::memset(codes, 0, codes_bytes(operation.code_count));
    return;
  }
  std::uint16_t numbers[MAX_CODES + 1];
  operation.own_codes(operation.codes_chunk(item), numbers);
  numbers[operation.code_count] = 0;  // pads the codes to whole words
  for (std::uint32_t i = 0; i < codes_bytes(operation.code_count) / CODE_BYTES; ++i)
    store_be16(codes + i * CODE_BYTES, numbers[i]);
}

// Sends a contribution that continues the run.
inline bool WorkerMachine::State::send_next(WorkerSink& sink, std::uint32_t slot, const Contributions& run) {
  const std::span<std::uint8_t> datagram = sink.reserve(run.bytes);
  if (datagram.empty()) return false;
  const std::uint64_t item = stream_.current(slot);
  const Operation& operation = stream_.operation(slot);
  ++regular_sent_;
  in_order_.sent(slot, false);
  std::ranges::copy(run.header, datagram.data());
  store_be32(datagram.data() + OFFSET_SLOT, slot);
  store_be32(datagram.data() + OFFSET_BASE, static_cast<std::uint32_t>(stream_.base(slot)));
  store_be32(datagram.data() + OFFSET_BITMAP, order());
  std::uint8_t* const codes = datagram.data() + HEADER_BYTES;
  store_codes(operation, item, operation.carries_codes(item), codes);
  operation.quantized(operation.words_chunk(item), stream_.agreed_codes(item),
                      codes + codes_bytes(operation.code_count));
  commit(sink, datagram.first(run.bytes));
  return true;
}

bool WorkerMachine::State::send_contribution(WorkerSink& sink, std::uint32_t slot, Contributions& run) {
  run.bytes = 0;
  const std::uint64_t item = stream_.current(slot);
  Operation& operation = stream_.operation(slot);
  const std::uint64_t base = stream_.base(slot);
  const bool first = !recovery_.was_sent(slot);
  const bool plain = first && operation.plain();  // as most are: then what follows is known
  const bool forecasts = !plain && stream_.forecasts(slot);
  // R-WORKER-7: what is accepted and shorter than its result is sent again as zeros of that length.
  const bool keeps = plain || operation.keeps(item, stream_.agreed_codes(item));
  const bool asks = !plain && keeps && accepted_[slot] != 0 &&
                    (operation.passes(item) || operation.result_word_count(item) > operation.word_count(item));
  const bool passes = !plain && operation.passes(item) && !asks;
  const std::size_t words = passes ? 0
                            : asks ? operation.result_word_count(item)
                                   : operation.word_count(item) + forecasts * AGE_WORDS;
  const std::size_t bytes = datagram_bytes(operation.code_count, words);
  Header contribution = header(Kind::contribution);
  contribution.slot = slot;
  contribution.bitmap = order();
  contribution.base = static_cast<std::uint32_t>(base);
  if (!keeps) contribution.flags |= FLAG_BARE;  // R-WORKER-8
  // R-WORKER-5: a pass that is known to be late must not count.
  if (passes) contribution.flags |= static_cast<std::uint8_t>(closed_[slot] > base ? FLAG_PASS | FLAG_LATE : FLAG_PASS);
  // R-WORKER-6: a stale round's pass is of whatever its worker has come to, and not of what the others contribute.
  contribution.signature = passes && !spec_.synchronous() ? 0 : operation.signature;
  contribution.code_count = static_cast<std::uint8_t>(operation.code_count);
  if (!passes && !asks) contribution.lanes = operation.lanes();
  const bool ahead = passes && in_order_.none();
  if (passes && first && joins(sink, contribution)) {
    in_order_.sent(slot, ahead);
    return true;
  }
  // Later ones may find that the round has closed, and its result in that place.
  const bool sole = !plain && operation.is_sole(item) && first;
  sink.go_ahead(ahead);
  const std::span<std::uint8_t> datagram =
      sole ? sink.reserve_sole(slot, contribution.base, bytes) : sink.reserve(bytes);
  if (datagram.empty()) return false;
  in_order_.sent(slot, ahead);
  joinable_ = passes && first;
  store_header(datagram.data(), contribution);

  std::uint8_t* const codes_at = datagram.data() + HEADER_BYTES;
  std::uint8_t* const words_at = codes_at + codes_bytes(operation.code_count);
  store_codes(operation, item, operation.carries_codes(item) || forecasts, codes_at);
  if (forecasts)
    store_by_forecast(operation, std::span(words_at, words * WORD_BYTES));
  else if (passes || asks)
    std::memset(words_at, 0, words * WORD_BYTES);
  else if (operation.carries_words(item))
    operation.quantized(operation.words_chunk(item), stream_.agreed_codes(item), words_at);
  commit(sink, datagram.first(bytes));
  if (plain && operation.is_whole(item)) {
    run.bytes = bytes;
    run.operation = stream_.operation_number(slot);
    store_header(run.header.data(), contribution);
  }
  return true;
}

// R-WORKER-9: adds the pass to the datagram before it, if they form a run.
bool WorkerMachine::State::joins(WorkerSink& sink, const Header& pass) {
  if (!runs_ || !joinable_) return false;
  const std::span<std::uint8_t> datagram = sink.last();
  if (datagram.size() != HEADER_BYTES) return false;
  const Header before = load_header(datagram.data());
  const std::optional<Header> run = with_next(before, pass, spec_.slots);
  if (!run) return false;
  store_header(datagram.data(), *run);
  finish(sink, datagram);
  return true;
}

// The words of the only chunk with the forecast's codes, and the forecast's age.
void WorkerMachine::State::store_by_forecast(Operation& operation, std::span<std::uint8_t> words) {
  if (!operation.has_forecast) operation.forecast = scales_.of(operation.shape(), operation.ticket);
  operation.has_forecast = true;
  if (operation.forecast.age != 0)
    operation.quantized(0, operation.forecast.codes.data(), words.data());
  else
    std::ranges::fill(words, std::uint8_t{0});
  operation.forecast.store_age(words.data() + words.size() - AGE_WORDS * WORD_BYTES);
}

}  // namespace fanin
