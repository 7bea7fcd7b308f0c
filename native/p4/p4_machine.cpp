#include "p4/p4_machine.hpp"

#include <algorithm>
#include <cstring>

#include "p4/p4_meter.hpp"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-gcse", "no-crossjumping")  // they would merge the jumps from one operation to the next
#endif

namespace fanin::p4 {

namespace {

constexpr std::uint32_t NORMAL = 0, INGRESS_CLONE = 1, EGRESS_CLONE = 2, RECIRCULATED = 4, REPLICATED = 5,
                        RESUBMITTED = 6;
constexpr std::uint64_t NO_CUT = 1 << 30;  // switch/p4/packet_state.py
constexpr std::uint64_t TIMESTAMP_MASK = 0xFFFF'FFFF'FFFF;
constexpr std::size_t MAX_SPARE_FRAMES = 64;

[[noreturn]] void undefined(const char* what) {
  throw PacketLost(std::string("the program does something undefined with this packet: ") + what);
}

void copy_extents(const std::uint64_t* from, std::uint64_t* to, const std::vector<Extent>& fields) {
  for (const Extent& each : fields) std::copy_n(from + each.first, each.limbs, to + each.first);
}

}  // namespace

Machine::Frame Machine::new_frame() {
  Frame frame;
  if (!spare_.empty()) {
    frame = std::move(spare_.back());
    spare_.pop_back();
    return frame;
  }
  const std::size_t limbs = program_.constants_at + program_.constants.size();
  frame = std::make_unique<std::uint64_t[]>(limbs);
  std::copy(program_.constants.begin(), program_.constants.end(), frame.get() + program_.constants_at);
  return frame;
}

void Machine::release(Frame frame) {
  if (spare_.size() < MAX_SPARE_FRAMES) spare_.push_back(std::move(frame));
}

void Machine::process(std::uint32_t port, std::span<const std::uint8_t> data, std::uint64_t now_us,
                      std::vector<Sent>& sent) {
  const std::size_t before = sent.size();
  try {
    entering_.push_back(Entering{data, nullptr, port, NORMAL, {}});
    std::uint32_t passes = 0;
    while (!entering_.empty() || !leaving_.empty()) {
      if (++passes > program_.max_passes) {
        ++endless_;
        throw PacketEndless("one packet caused more than " + std::to_string(program_.max_passes) +
                            " passes: the program goes in circles");
      }
      if (!leaving_.empty()) {
        Leaving next = std::move(leaving_.front());
        leaving_.pop_front();
        if (next.original) become_replica(next);
        egress(std::move(next), now_us, sent);
      } else {
        Entering next = std::move(entering_.front());
        entering_.pop_front();
        ingress(std::move(next), now_us);
      }
    }
  } catch (...) {
    sent.resize(before);
    entering_.clear();
    leaving_.clear();
    throw;
  }
}

Machine::Packet Machine::parse(const Entering& entering, std::uint64_t now_us) {
  Packet packet{new_frame(), {}, entering.owner};
  std::uint64_t* const f = packet.frame.get();
  copy_limbs(program_.blank.data(), f, program_.beginning);
  const Places& places = program_.places;
  f[ARRIVED] = f[LENGTH] = f[PACKET_BYTES] = entering.data.size();
  f[CUT] = NO_CUT;
  f[SOURCE_PORT] = entering.port;
  f[NOW_US] = now_us;
  const bool first = entering.kind == NORMAL, clone = entering.kind == INGRESS_CLONE;
  f[places.ingress_port] = first || clone ? entering.port : 0;
  set(f, places.ingress_timestamp, first ? now_us & TIMESTAMP_MASK : 0);
  restore(f, entering.kept);
  f[places.packet_length] = clone ? 0 : entering.data.size();
  f[places.instance_type] = clone ? NORMAL : entering.kind;
  stopped_ = false;
  run(f, program_.parser, entering.data);
  packet.payload = entering.data.subspan(std::min<std::size_t>(f[AT], entering.data.size()));
  set(f, places.parser_error, stopped_ ? stop_code_ : program_.no_error);
  run(f, program_.verify, packet.payload);
  set(f, places.checksum_error, f[RESULT]);
  return packet;
}

void Machine::ingress(const Entering& entering, std::uint64_t now_us) {
  Packet packet = parse(entering, now_us);
  std::uint64_t* const f = packet.frame.get();
  const Places& places = program_.places;
  run(f, program_.ingress, packet.payload);
  f[EXIT] = 0;
  if (f[CLONE]) {
    clone_ingress(entering, packet, now_us);
    f[CLONE] = 0;
  }
  if (f[DIGEST]) learn(f);
  if (f[RESUBMIT]) {
    Kept brought = kept(f, f[RESUBMIT]);
    entering_.push_back(Entering{entering.data, entering.owner, entering.port, RESUBMITTED, std::move(brought)});
    release(std::move(packet.frame));
    return;
  }
  const std::uint64_t group = places.mcast_grp == ABSENT ? 0 : f[places.mcast_grp];
  if (group) {
    f[places.instance_type] = REPLICATED;
    f[CUT] = NO_CUT;
    const auto found = groups_.find(static_cast<std::uint32_t>(group));
    if (found == groups_.end())
      release(std::move(packet.frame));
    else
      replicate(std::move(packet), found->second);
    return;
  }
  const auto port = static_cast<std::uint32_t>(f[places.egress_spec]);
  if (port == program_.drop_port) {
    ++dropped_;
    release(std::move(packet.frame));
    return;
  }
  f[places.instance_type] = NORMAL;
  leaving_.push_back(Leaving{std::move(packet), port, nullptr, 0});
}

void Machine::learn(const std::uint64_t* frame) {
  const auto found = program_.learn_lists.find(static_cast<std::uint32_t>(frame[DIGEST]));
  if (found == program_.learn_lists.end()) return;
  Digest digest{found->first, {}};
  for (const auto& [first, limbs] : found->second)
    digest.limbs.insert(digest.limbs.end(), frame + first, frame + first + limbs);
  digests_.push_back(std::move(digest));
  if (digests_.size() > MAX_DIGESTS) digests_.pop_front();
}

std::uint32_t Machine::add_choices(Choices choices) {
  if (free_choices_.empty()) {
    choices_.push_back(std::move(choices));
    return static_cast<std::uint32_t>(choices_.size());
  }
  const std::uint32_t number = free_choices_.back();
  free_choices_.pop_back();
  choices_[number - 1] = std::move(choices);
  return number;
}

void Machine::remove_choices(std::uint32_t number) {
  choices_.at(number - 1) = {};
  free_choices_.push_back(number);
}

// Copies the state and these fields. The other limbs of a frame keep an earlier packet's values, and are never read.
void Machine::copy_limbs(const std::uint64_t* from, std::uint64_t* to, const std::vector<Extent>& fields) {
  std::copy_n(from, STATE_LIMBS, to);
  copy_extents(from, to, fields);
}

// A replica of a packet, without the requests (clone, digest, ...) made for the original.
Machine::Packet Machine::copy(const Packet& packet) {
  Packet made{new_frame(), packet.payload, packet.owner};
  std::uint64_t* const f = made.frame.get();
  copy_limbs(packet.frame.get(), f, program_.carried);
  f[EXIT] = f[CLONE] = f[RESUBMIT] = f[RECIRCULATE] = 0;
  return made;
}

// Queues replicas, each of which is copied when it is processed, so that two frames suffice for any number of them.
void Machine::replicate(Packet packet, const std::vector<Replica>& replicas) {
  if (replicas.empty()) {
    release(std::move(packet.frame));
    return;
  }
  std::uint64_t* const f = packet.frame.get();
  f[EXIT] = f[CLONE] = f[RESUBMIT] = f[RECIRCULATE] = 0;
  const auto original = std::make_shared<Packet>(std::move(packet));
  for (const Replica& replica : replicas) leaving_.push_back(Leaving{{}, replica.port, original, replica.instance});
}

void Machine::become_replica(Leaving& leaving) {
  const bool last = leaving.original.use_count() == 1;
  leaving.packet = last ? std::move(*leaving.original) : copy(*leaving.original);
  leaving.original.reset();
  set(leaving.packet.frame.get(), program_.places.egress_rid, leaving.instance);
}

const MirrorSession* Machine::session_of(const std::uint64_t* frame) const {
  const auto session = mirrors_.find(static_cast<std::uint32_t>(frame[CLONE] & ~CLONE_ASKED));
  return session == mirrors_.end() ? nullptr : &session->second;
}

void Machine::clone_ingress(const Entering& entering, const Packet& packet, std::uint64_t now_us) {
  const std::uint64_t* const f = packet.frame.get();
  const MirrorSession* const session = session_of(f);
  if (session == nullptr) return;
  const Kept brought = kept(f, f[CLONE_FIELDS]);
  Packet again = parse(Entering{entering.data, entering.owner, entering.port, INGRESS_CLONE, {}}, now_us);
  copy_extents(program_.blank.data(), again.frame.get(), program_.metadata);
  replicate_clone(std::move(again), brought, INGRESS_CLONE, *session);
}

void Machine::clone_egress(const Packet& packet) {
  const std::uint64_t* const f = packet.frame.get();
  const MirrorSession* const session = session_of(f);
  if (session == nullptr) return;
  Packet made = copy(packet);
  copy_extents(program_.blank.data(), made.frame.get(), program_.metadata);
  replicate_clone(std::move(made), kept(f, f[CLONE_FIELDS]), EGRESS_CLONE, *session);
}

void Machine::replicate_clone(Packet clone, const Kept& brought, std::uint32_t kind, const MirrorSession& session) {
  std::uint64_t* const f = clone.frame.get();
  restore(f, brought);
  f[program_.places.instance_type] = kind;
  f[CUT] = session.cut ? session.cut : NO_CUT;
  replicate(std::move(clone), session.replicas);
}

Machine::Kept Machine::kept(const std::uint64_t* frame, std::uint64_t list) const {
  Kept found;
  const auto fields = program_.field_lists.find(static_cast<std::uint32_t>(list));
  if (fields == program_.field_lists.end()) return found;
  for (const auto& [first, limbs] : fields->second)
    found.emplace_back(first, std::vector<std::uint64_t>(frame + first, frame + first + limbs));
  return found;
}

void Machine::restore(std::uint64_t* frame, const Kept& kept) {
  for (const auto& [first, limbs] : kept) std::copy(limbs.begin(), limbs.end(), frame + first);
}

void Machine::egress(Leaving leaving, std::uint64_t now_us, std::vector<Sent>& sent) {
  Packet packet = std::move(leaving.packet);
  std::uint64_t* const f = packet.frame.get();
  const Places& places = program_.places;
  f[places.egress_port] = leaving.port;
  f[places.egress_spec] = 0;
  f[places.packet_length] = f[LENGTH];
  set(f, places.egress_timestamp, now_us & TIMESTAMP_MASK);
  set(f, places.enqueued_timestamp, now_us & 0xFFFF'FFFF);
  run(f, program_.egress, packet.payload);
  if (f[CLONE]) {
    clone_egress(packet);
    f[CLONE] = 0;
  }
  if (f[places.egress_spec] == program_.drop_port) {
    ++dropped_;
    release(std::move(packet.frame));
    return;
  }
  run(f, program_.update, packet.payload);
  emitted_.clear();
  run(f, program_.deparse, packet.payload);
  const std::span<const std::uint8_t> whole = emitted_.bytes();
  const std::span<const std::uint8_t> leaves = f[RECIRCULATE] ? whole : whole.first(std::min(whole.size(), f[CUT]));
  std::vector<std::uint8_t> data(leaves.begin(), leaves.end());
  if (f[RECIRCULATE]) {
    auto owner = std::make_shared<std::vector<std::uint8_t>>(std::move(data));
    const auto port = static_cast<std::uint32_t>(f[SOURCE_PORT]);
    entering_.push_back(Entering{*owner, owner, port, RECIRCULATED, kept(f, f[RECIRCULATE])});
  } else {
    sent.push_back(Sent{leaving.port, std::move(data)});
  }
  release(std::move(packet.frame));
}

namespace {

std::uint64_t low_bits(std::uint64_t value, unsigned bits) { return value & (~std::uint64_t{0} >> (64 - bits)); }

template <typename Word>
std::uint64_t load(std::span<const std::uint8_t> packet, std::size_t at) {
  Word word;
  if (at + sizeof word > packet.size()) return 0;
  std::memcpy(&word, packet.data() + at, sizeof word);
  if constexpr (sizeof word == 1) return word;
  if constexpr (sizeof word == 2) return __builtin_bswap16(word);
  if constexpr (sizeof word == 4) return __builtin_bswap32(word);
  return __builtin_bswap64(word);
}

// `bits` bits of a packet from bit `first` on, as limbs.
void load_bits(std::uint64_t* to, std::span<const std::uint8_t> packet, std::size_t first, unsigned bits) {
  if (bits <= 57 && first / 8 + 8 <= packet.size()) {  // within eight bytes, wherever it begins
    *to = load<std::uint64_t>(packet, first / 8) << first % 8 >> (64 - bits);
    return;
  }
  const std::size_t last = first + bits;  // one past the lowest bit
  if (last > packet.size() * 8) {
    std::fill_n(to, (bits + 63) / 64, 0);
    return;
  }
  if (first % 8 == 0 && bits % 64 == 0) {
    for (std::size_t at = last / 8; bits > 0; bits -= 64) *to++ = load<std::uint64_t>(packet, at -= 8);
    return;
  }
  for (std::size_t end = last; bits > 0; ++to) {
    const unsigned count = std::min(bits, 64u);
    const std::size_t byte_end = (end + 7) / 8, spare = byte_end * 8 - end, byte_first = (end - count) / 8;
    unsigned __int128 value = 0;
    if (count == 64 && spare == 0) {
      *to = load<std::uint64_t>(packet, byte_first);
    } else {
      for (std::size_t at = byte_first; at < byte_end; ++at) value = value << 8 | packet[at];
      *to = low_bits(static_cast<std::uint64_t>(value >> spare), count);
    }
    end -= count;
    bits -= count;
  }
}

// From the top, as numbers without a sign: negative, zero or positive.
int compared(const std::uint64_t* a, const std::uint64_t* b, unsigned limbs) {
  while (limbs-- > 0)
    if (a[limbs] != b[limbs]) return a[limbs] < b[limbs] ? -1 : 1;
  return 0;
}

// Destination and source may be the same place: from the top down for a left shift, from the bottom up for a right one.
void shift_left(std::uint64_t* to, unsigned limbs, const std::uint64_t* from, unsigned available, unsigned shift) {
  const unsigned whole = shift / 64, within = shift % 64;
  for (unsigned at = limbs; at-- > 0;) {
    const auto limb = [&](unsigned place) { return place < available ? from[place] : 0; };
    std::uint64_t value = 0;
    if (at >= whole) value = limb(at - whole) << within;
    if (within && at > whole) value |= limb(at - whole - 1) >> (64 - within);
    to[at] = value;
  }
}

void shift_right(std::uint64_t* to, unsigned limbs, const std::uint64_t* from, unsigned available, unsigned shift) {
  const unsigned whole = shift / 64, within = shift % 64;
  for (unsigned at = 0; at < limbs; ++at) {
    const auto limb = [&](unsigned place) { return place < available ? from[place] : 0; };
    std::uint64_t value = limb(at + whole) >> within;
    if (within) value |= limb(at + whole + 1) << (64 - within);
    to[at] = value;
  }
}

}  // namespace

void Machine::run(std::uint64_t* const f, std::uint32_t start, std::span<const std::uint8_t> packet) {
  const Instruction* const code = program_.code.data();
  const Instruction* at = code + start;
  const TableEntry* entry = nullptr;
  std::uint32_t states_left = program_.max_states;
  Instruction i;
  // Every operation jumps to the next one's by itself: the processor predicts each of these jumps apart.
  static const void* const targets[] = {
#define FANIN_P4_TARGET(name) &&name,  // NOLINT(bugprone-macro-parentheses): a label cannot stand in them
      FANIN_P4_OPERATIONS(FANIN_P4_TARGET)
#undef FANIN_P4_TARGET
  };
#define FANIN_P4_NEXT()                                   \
  do {                                                    \
    i = *at++;                                            \
    goto* targets[static_cast<std::size_t>(i.operation)]; \
  } while (false)
  FANIN_P4_NEXT();
HALT:
  return;
JUMP:
  at = code + i.d;
  FANIN_P4_NEXT();
STOP:
  stopped_ = true;
  stop_code_ = f[i.a];
  return;
FAIL:
  throw PacketLost(program_.failures[i.d]);
TRANSIT:
  if (--states_left == 0)
    throw PacketLost("the parser went through more than " + std::to_string(program_.max_states) + " states");
  FANIN_P4_NEXT();
ACTION_END:
  if (f[EXIT]) return;
  at = code + entry->next;
  FANIN_P4_NEXT();
JUMP_ZERO:
  if (f[i.a] == 0) at = code + i.d;
  FANIN_P4_NEXT();
JUMP_NONZERO:
  if (f[i.a] != 0) at = code + i.d;
  FANIN_P4_NEXT();
JUMP_EQ:
  if (f[i.a] == f[i.b]) at = code + i.d;
  FANIN_P4_NEXT();
JUMP_NE:
  if (f[i.a] != f[i.b]) at = code + i.d;
  FANIN_P4_NEXT();
JUMP_LT:
  if (f[i.a] < f[i.b]) at = code + i.d;
  FANIN_P4_NEXT();
JUMP_LE:
  if (f[i.a] <= f[i.b]) at = code + i.d;
  FANIN_P4_NEXT();
JUMP_LT_SIGNED:
  if (static_cast<std::int64_t>(f[i.a]) < static_cast<std::int64_t>(f[i.b])) at = code + i.d;
  FANIN_P4_NEXT();
JUMP_LE_SIGNED:
  if (static_cast<std::int64_t>(f[i.a]) <= static_cast<std::int64_t>(f[i.b])) at = code + i.d;
  FANIN_P4_NEXT();
JUMP_EQ_WIDE:
  if (compared(f + i.a, f + i.b, i.n) == 0) at = code + i.d;
  FANIN_P4_NEXT();
JUMP_NE_WIDE:
  if (compared(f + i.a, f + i.b, i.n) != 0) at = code + i.d;
  FANIN_P4_NEXT();
JUMP_LT_WIDE:
  if (compared(f + i.a, f + i.b, i.n) < 0) at = code + i.d;
  FANIN_P4_NEXT();
JUMP_LE_WIDE:
  if (compared(f + i.a, f + i.b, i.n) <= 0) at = code + i.d;
  FANIN_P4_NEXT();
COPY:
  f[i.d] = low_bits(f[i.a], i.n);
  FANIN_P4_NEXT();
ADD:
  f[i.d] = low_bits(f[i.a] + f[i.b], i.n);
  FANIN_P4_NEXT();
SUB:
  f[i.d] = low_bits(f[i.a] - f[i.b], i.n);
  FANIN_P4_NEXT();
MUL:
  f[i.d] = low_bits(f[i.a] * f[i.b], i.n);
  FANIN_P4_NEXT();
AND:
  f[i.d] = low_bits(f[i.a] & f[i.b], i.n);
  FANIN_P4_NEXT();
OR:
  f[i.d] = low_bits(f[i.a] | f[i.b], i.n);
  FANIN_P4_NEXT();
XOR:
  f[i.d] = low_bits(f[i.a] ^ f[i.b], i.n);
  FANIN_P4_NEXT();
NOT:
  f[i.d] = low_bits(~f[i.a], i.n);
  FANIN_P4_NEXT();
SHL:
  f[i.d] = low_bits(f[i.a] << i.b, i.n);
  FANIN_P4_NEXT();
SHR:
  f[i.d] = low_bits(f[i.a] >> i.b, i.n);
  FANIN_P4_NEXT();
SHL_VAR:
  f[i.d] = f[i.b] < 64 ? low_bits(f[i.a] << f[i.b], i.n) : 0;
  FANIN_P4_NEXT();
SHR_VAR:
  f[i.d] = f[i.b] < 64 ? low_bits(f[i.a] >> f[i.b], i.n) : 0;
  FANIN_P4_NEXT();
DIV:
MOD:
  if (f[i.b] == 0) undefined("division by zero");
  f[i.d] = low_bits(i.operation == Operation::DIV ? f[i.a] / f[i.b] : f[i.a] % f[i.b], i.n);
  FANIN_P4_NEXT();
SEXT:
  {
    const std::uint64_t sign = std::uint64_t{1} << (i.n - 1);
    f[i.d] = (low_bits(f[i.a], i.n) ^ sign) - sign;
    FANIN_P4_NEXT();
  }
COPY_WIDE:
  std::memmove(f + i.d, f + i.a, i.n * sizeof *f);
  FANIN_P4_NEXT();
ADD_WIDE:
  {
    unsigned char carry = 0;
    for (unsigned limb = 0; limb < i.n; ++limb) {
      std::uint64_t sum;
      const bool first = __builtin_add_overflow(f[i.a + limb], f[i.b + limb], &sum);
      const bool second = __builtin_add_overflow(sum, std::uint64_t{carry}, &sum);
      carry = first || second;
      f[i.d + limb] = sum;
    }
    FANIN_P4_NEXT();
  }
SUB_WIDE:
  {
    unsigned char borrow = 0;
    for (unsigned limb = 0; limb < i.n; ++limb) {
      std::uint64_t left;
      const bool first = __builtin_sub_overflow(f[i.a + limb], f[i.b + limb], &left);
      const bool second = __builtin_sub_overflow(left, std::uint64_t{borrow}, &left);
      borrow = first || second;
      f[i.d + limb] = left;
    }
    FANIN_P4_NEXT();
  }
AND_WIDE:
  for (unsigned limb = 0; limb < i.n; ++limb) f[i.d + limb] = f[i.a + limb] & f[i.b + limb];
  FANIN_P4_NEXT();
OR_WIDE:
  for (unsigned limb = 0; limb < i.n; ++limb) f[i.d + limb] = f[i.a + limb] | f[i.b + limb];
  FANIN_P4_NEXT();
XOR_WIDE:
  for (unsigned limb = 0; limb < i.n; ++limb) f[i.d + limb] = f[i.a + limb] ^ f[i.b + limb];
  FANIN_P4_NEXT();
NOT_WIDE:
  for (unsigned limb = 0; limb < i.n; ++limb) f[i.d + limb] = ~f[i.a + limb];
  FANIN_P4_NEXT();
// b: distance in bits and, in the upper half, the operand's number of limbs.
SHL_WIDE:
  shift_left(f + i.d, i.n, f + i.a, i.b >> 16, i.b & 0xFFFF);
  FANIN_P4_NEXT();
SHR_WIDE:
  shift_right(f + i.d, i.n, f + i.a, i.b >> 16, i.b & 0xFFFF);
  FANIN_P4_NEXT();
// Extends an operand of b & 0xFFFF limbs to n limbs, with its sign if b has bit 16.
EXTEND:
  {
    const unsigned available = i.b & 0xFFFF;
    const bool negative = (i.b >> 16) && f[i.a + available - 1] >> 63;
    std::memmove(f + i.d, f + i.a, available * sizeof *f);
    std::fill(f + i.d + available, f + i.d + i.n, negative ? ~std::uint64_t{0} : 0);
    FANIN_P4_NEXT();
  }
ZERO:
  std::fill_n(f + i.d, i.n, 0);
  FANIN_P4_NEXT();
TRIM:
  f[i.d] = low_bits(f[i.d], i.n);
  FANIN_P4_NEXT();
LOAD8:
  f[i.d] = load<std::uint8_t>(packet, f[AT] + i.a);
  FANIN_P4_NEXT();
LOAD16:
  f[i.d] = load<std::uint16_t>(packet, f[AT] + i.a);
  FANIN_P4_NEXT();
LOAD32:
  f[i.d] = load<std::uint32_t>(packet, f[AT] + i.a);
  FANIN_P4_NEXT();
LOAD64:
  f[i.d] = load<std::uint64_t>(packet, f[AT] + i.a);
  FANIN_P4_NEXT();
LOAD_BITS:
  load_bits(f + i.d, packet, f[AT] * 8 + i.a, i.n);
  FANIN_P4_NEXT();
READ32:
READ64:
READ_WIDE:
  {
    const RegisterArray& array = program_.registers[i.a];
    const std::uint64_t index = f[i.b];
    if (index >= array.size) undefined("index beyond a register array");
    if (i.operation == Operation::READ32)
      f[i.d] = static_cast<const std::uint32_t*>(array.cells)[index];
    else if (i.operation == Operation::READ64)
      f[i.d] = static_cast<const std::uint64_t*>(array.cells)[index];
    else
      std::memcpy(f + i.d, static_cast<const std::uint64_t*>(array.cells) + index * array.limbs, array.limbs * 8);
    FANIN_P4_NEXT();
  }
WRITE32:
WRITE64:
WRITE_WIDE:
  {
    const RegisterArray& array = program_.registers[i.d];
    const std::uint64_t index = f[i.b];
    if (index >= array.size) undefined("index beyond a register array");
    if (i.operation == Operation::WRITE32)
      static_cast<std::uint32_t*>(array.cells)[index] = static_cast<std::uint32_t>(f[i.a]);
    else if (i.operation == Operation::WRITE64)
      static_cast<std::uint64_t*>(array.cells)[index] = f[i.a];
    else
      std::memcpy(static_cast<std::uint64_t*>(array.cells) + index * array.limbs, f + i.a, array.limbs * 8);
    FANIN_P4_NEXT();
  }
COUNT_PACKET:
COUNT_BYTES:
  {
    const CounterArray& array = program_.counters[i.d];
    const std::uint64_t index = f[i.b];
    if (index >= array.size) undefined("index beyond a counter array");
    if (i.operation == Operation::COUNT_PACKET)
      ++array.packets[index];
    else
      array.bytes[index] += static_cast<std::int64_t>(f[ARRIVED]);
    FANIN_P4_NEXT();
  }
FIND:
  entry = &tables_[i.d].find(f + i.a);
  FANIN_P4_NEXT();
MISS:
  entry = &tables_[i.d].miss();
  FANIN_P4_NEXT();
COUNT_ENTRY:
  if (entry->counts) {
    ++entry->counts[0];
    entry->counts[1] += static_cast<std::int64_t>(f[ARRIVED]);
  }
  FANIN_P4_NEXT();
METER_ENTRY:
  if (entry->meter) f[i.d] = low_bits(colour_of(entry->meter, i.b ? f[ARRIVED] : 1, f[NOW_US]), i.n);
  FANIN_P4_NEXT();
// a: the array; n: whether its tokens are bytes.
METER_CELL:
  {
    const MeterArray& array = program_.meters[i.a];
    const std::uint64_t index = f[i.b];
    if (index >= array.size) undefined("index beyond a meter array");
    f[i.d] = colour_of(array.cells + index * METER_CELLS, i.n ? f[ARRIVED] : 1, f[NOW_US]);
    FANIN_P4_NEXT();
  }
SELECT:
  if (entry->choices) entry = &choices_[entry->choices - 1].chosen(f[i.a]);
  FANIN_P4_NEXT();
RUN:
  std::copy(entry->data.begin(), entry->data.end(), f + program_.parameters);
  at = code + entry->action;
  FANIN_P4_NEXT();
HASH_BEGIN:
  hashed_.clear();
  FANIN_P4_NEXT();
HASH_PUT:
  if (i.n <= 64)
    hashed_.put(f[i.a], i.n);
  else
    hashed_.put_wide(f + i.a, i.n);
  FANIN_P4_NEXT();
// a: the algorithm; b: whether the payload is part of it.
HASH:
  hashed_.pad();
  if (i.b) hashed_.put_bytes(packet.data(), packet.size());
  f[i.d] = hash_of(static_cast<Hash>(i.a), hashed_.bytes().data(), hashed_.bytes().size());
  FANIN_P4_NEXT();
EMIT:
  if (i.n <= 64)
    emitted_.put(f[i.a], i.n);
  else
    emitted_.put_wide(f + i.a, i.n);
  FANIN_P4_NEXT();
EMIT_PAYLOAD:
  emitted_.put_bytes(packet.data(), packet.size());
  FANIN_P4_NEXT();
#undef FANIN_P4_NEXT
}

}  // namespace fanin::p4
