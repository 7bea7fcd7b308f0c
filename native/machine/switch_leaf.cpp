// The leaf's side of the protocol with its parent: rounds go up as contributions, results come down. R-LEAF,
// in docs/slot-machine.md and docs/protocol.md; twin of switch/machine/leaf_side.py.
#include <algorithm>

#include "machine/switch_machine_state.hpp"

namespace fanin {

// Contributes a complete round to the parent's round, for the first time or again.
void SwitchMachine::State::ascend(SwitchJob& job, const Ascent& ascent) {
  const Uplink& uplink = job.uplink->uplink();
  const std::uint32_t number = job.ring.open(ascent.slot);
  const std::span<const std::uint8_t> known = job.ring.result(ascent.slot, number);
  // R-WORKER-7, for a leaf: a round of passes is shorter than its result, so it is sent as zeros of that length.
  if (ascent.full && (known[OFFSET_FLAGS] & FLAG_PASS) != 0 && (known[OFFSET_FLAGS] & FLAG_BARE) == 0) {
    const std::size_t bytes = datagram_bytes(job.spec.codes_per_packet, job.spec.words_per_packet);
    if (!takes(job.tally, bytes, 1)) return;
    const Header asking = {.kind = Kind::contribution,
                           .job = uplink.job,
                           .worker = uplink.worker,
                           .flags = job.spec.checksum ? FLAG_CHECKSUM : std::uint8_t{0},
                           .generation = uplink.generation,
                           .slot = ascent.slot,
                           .base = number,
                           .bitmap = ascent.order,
                           .code_count = static_cast<std::uint8_t>(job.spec.codes_per_packet)};
    const std::span<std::uint8_t> datagram = queue.push(bytes, {&uplink.parent, 1});
    write_news(datagram, asking, 0, 0);
    return job.parent_keys.finish(datagram);
  }
  if (!takes(job.tally, known.size(), 1)) return;
  const std::span<std::uint8_t> datagram = job.ring.ascending(ascent.slot, ascent.order, queue);
  queue.push_in_place(datagram, nullptr, job.ring.queue_mark(ascent.slot, number), {&uplink.parent, 1});
}

void SwitchMachine::State::speak_to_parent(SwitchJob& job, double now) {
  UplinkPresence& presence = *job.uplink;
  const std::size_t longest = datagram_bytes(job.spec.codes_per_packet, job.spec.words_per_packet);
  if (presence.hello_due(now)) {
    const bool connecting = presence.phase() == Phase::connecting;
    const std::span<const std::size_t> questions = path_questions(job, now);
    send_token_up(job, Kind::hello, presence.hello_sequence(), connecting ? longest : datagram_bytes(0, TOKEN_WORDS));
    job.ascents->hello_sent(presence.hello_sequence(), now);
    presence.hello_sent(now);
    for (const std::size_t bytes : questions) {
      send_token_up(job, Kind::hello, presence.hello_sequence(), bytes);
      presence.probe_sent();
    }
  }
  if (presence.bye_due(now)) {
    send_token_up(job, Kind::bye, 0, datagram_bytes(0, TOKEN_WORDS));
    presence.bye_sent(now);
  }
  while (const std::optional<Ascent> next = job.ascents->take(now)) ascend(job, *next);
}

// Lengths of the HELLOs to send behind a heartbeat: as long as the packets of the oldest round whose result the parent
// owes, and a shorter one.
std::span<const std::size_t> SwitchMachine::State::path_questions(SwitchJob& job, double now) {
  UplinkPresence& presence = *job.uplink;
  if (presence.phase() != Phase::member || !presence.answered()) return {};
  const std::optional<std::uint64_t> oldest = job.ascents->oldest();
  std::size_t needed_bytes = 0;
  if (oldest) {
    const auto slot = static_cast<std::uint32_t>(*oldest % job.spec.slots);
    const std::span<const std::uint8_t> known = job.ring.result(slot, job.ring.open(slot));
    const bool asked_in_full = (known[OFFSET_FLAGS] & FLAG_PASS) != 0 && (known[OFFSET_FLAGS] & FLAG_BARE) == 0;
    needed_bytes = asked_in_full ? datagram_bytes(job.spec.codes_per_packet, job.spec.words_per_packet) : known.size();
  }
  return presence.path.beat(oldest, needed_bytes, now);
}

void SwitchMachine::State::send_token_up(SwitchJob& job, Kind kind, std::uint32_t sequence, std::size_t bytes) {
  const Uplink& uplink = job.uplink->uplink();
  if (!takes(job.tally, bytes, 1)) return;
  const Header header = {.kind = kind,
                         .job = uplink.job,
                         .worker = uplink.worker,
                         .flags = job.spec.checksum ? FLAG_CHECKSUM : std::uint8_t{0},
                         .generation = uplink.generation,
                         .slot = sequence};
  const std::span<std::uint8_t> datagram = queue.push(bytes, {&uplink.parent, 1});
  write_news(datagram, header, static_cast<std::uint32_t>(uplink.token >> 32),
             static_cast<std::uint32_t>(uplink.token));
  job.parent_keys.finish(datagram);
}

// The part that a packet from `source` concerns; if none has its generation, one of its index, which refuses it.
SwitchJob* SwitchMachine::State::find_part(Address source, const Header& header) {
  auto part = parts.find({source, header.job, header.generation});
  if (part == parts.end()) part = parts.lower_bound({source, header.job, 0});
  if (part == parts.end() || std::get<0>(part->first) != source || std::get<1>(part->first) != header.job)
    return nullptr;
  return jobs[part->second].get();
}

void SwitchMachine::State::receive_from_parent(SwitchJob& job, const Parsed& packet,
                                               std::span<const std::uint8_t> datagram, double now, bool marked) {
  UplinkPresence& presence = *job.uplink;
  const Header& header = packet.header;
  ++job.tally.packets_in;
  job.tally.bytes_in += datagram.size();
  const Reason objection = [&] {
    const bool connecting = presence.phase() == Phase::connecting;
    if (job.spec.checksum && (header.flags & FLAG_CHECKSUM) == 0) return Reason::checksum;
    if (header.generation != presence.uplink().generation) return Reason::generation;
    if (header.worker != presence.uplink().worker && header.worker != SWITCH_WORKER) return Reason::worker_range;
    if (!job.parent_keys.holds(datagram)) return Reason::tag;
    switch (header.kind) {
      case Kind::result:
      case Kind::answer:
        if (header.slot >= job.spec.slots) return Reason::slot_range;
        if (run_of(header) > 1) return Reason::length;  // a leaf never asks for runs
        if ((header.code_count != 0 && header.code_count != job.spec.codes_per_packet) ||
            packet.word_count > job.spec.words_per_packet)
          return Reason::length;
        return Reason{};
      case Kind::receipt:
        return Reason{};
      case Kind::welcome:
        if (connecting && datagram.size() != datagram_bytes(job.spec.codes_per_packet, job.spec.words_per_packet))
          return Reason::length;
        [[fallthrough]];
      case Kind::notice:
      case Kind::bye:
        if (packet.word_count < TOKEN_WORDS) return Reason::length;
        if (job.parent_keys.tags() && header.kind == Kind::welcome && header.slot < job.parent_welcomes)
          return Reason::ancient;
        return header.kind == Kind::notice && header.contributors == static_cast<std::uint16_t>(Reason::version) &&
                       (job.spec.checksum || !connecting)
                   ? Reason::version
                   : Reason{};
      default:
        return Reason::kind;
    }
  }();
  if (objection != Reason{}) return job.tally.drop(objection);
  if (!job.parent_keys.tags() || header.kind == Kind::welcome) presence.heard(now);  // others may be replays
  const auto gone = [&] {
    return presence.branches_gone(load_be32(packet.words), load_be32(packet.words + WORD_BYTES));
  };
  if (header.kind == Kind::result || header.kind == Kind::answer) return descend(job, packet, now, marked);
  if (header.kind == Kind::receipt) return receipt_from_parent(job, packet, now);
  if (header.kind == Kind::bye) return presence.departed();
  if (header.kind == Kind::welcome) {
    job.parent_welcomes = std::uint64_t{header.slot} + 1;
    job.ascents->welcome(header.slot, now);
    presence.welcome(datagram.size(), now);
    return tell_news(job, gone());
  }
  const auto reason = static_cast<Reason>(header.contributors);
  if (reason == Reason::worker_lost || reason == Reason::worker_left) return tell_news(job, gone());
  if (reason == Reason::mismatch) return tell(job, Reason::mismatch, SWITCH_WORKER, job.audience());
  tell_news(job, presence.refused());
}

// Handles the parent's result of a round, or its answer to a contribution that was sent again.
void SwitchMachine::State::descend(SwitchJob& job, const Parsed& packet, double now, bool marked) {
  const Header& header = packet.header;
  const bool asked = header.base == job.ring.open(header.slot) && job.ring.complete(header.slot);
  if (header.kind == Kind::answer && (header.flags & FLAG_BARE) != 0) {
    // Workers that keep no words need the codes alone.
    const bool enough = asked && job.ring.all_bare(header.slot) &&
                        header.code_count == job.ring.result(header.slot, header.base)[OFFSET_CODE_COUNT];
    if (asked && !enough) job.ascents->acknowledged(header.slot);
    if (!enough) return;
  }
  const Contribution result = {.signature = header.signature,
                               .codes = packet.codes,
                               .code_count = header.code_count,
                               .words = packet.words,
                               .word_count = static_cast<std::uint32_t>(packet.word_count),
                               .contributors = header.contributors,
                               .lanes = header.lanes};
  if (job.ring.descend(header.slot, header.base, result, queue)) {  // R-LEAF-3
    job.uplink->heard(now);
    job.times[header.slot].closed_s = now;
    job.ascents->came(header.slot, now, header.kind == Kind::answer, marked);
    return multicast(job, header.slot, header.base);
  }
  if (header.base < job.ring.open(header.slot))  // R-LEAF-4; else R-LEAF-5
    ++job.tally.duplicates;
  else
    job.tally.drop(Reason::future);
}

// Handles a receipt: which transmissions have arrived and, if it has a bit for every slot, which rounds have closed.
void SwitchMachine::State::receipt_from_parent(SwitchJob& job, const Parsed& packet, double now) {
  const Header& header = packet.header;
  job.ascents->receipt(header.slot, header.signature, header.bitmap, now,
                       (header.contributors & RECEIPT_REPEATED) != 0);
  if (packet.word_count != job.parities.size()) return;
  const auto odd = [&](std::uint32_t slot) {
    return (load_be32(packet.words + std::size_t{slot / WORD_BITS} * WORD_BYTES) >> slot % WORD_BITS & 1) != 0;
  };
  job.ascents->settle(header.signature, odd, now);
}

void SwitchMachine::State::tell_news(SwitchJob& job, Reason news) {
  if (news != Reason{}) tell(job, news, SWITCH_WORKER, job.audience());
}

}  // namespace fanin
