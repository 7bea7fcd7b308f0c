// Runs a compiled P4 program: the instructions of p4_code.hpp, and around them the v1model architecture, whose rules
// stand in switch/p4/v1model.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "p4/p4_code.hpp"
#include "p4/p4_table.hpp"

namespace fanin::p4 {

// Thrown when the program does something undefined with a packet: the packet is lost, and the switch goes on.
struct PacketLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Thrown when one packet causes more than max_passes passes.
struct PacketEndless : PacketLost {
  using PacketLost::PacketLost;
};

// Place of a field that the architecture uses; ABSENT if the program has none.
constexpr std::uint32_t ABSENT = 0xFFFFFFFF;
struct Places {
  std::uint32_t ingress_port, packet_length, instance_type, egress_spec, egress_port;
  std::uint32_t parser_error, checksum_error, mcast_grp, egress_rid;
  std::uint32_t ingress_timestamp, egress_timestamp, enqueued_timestamp;
};

struct Replica {
  std::uint32_t port;
  std::uint32_t instance;
};

struct MirrorSession {
  std::vector<Replica> replicas;
  std::uint64_t cut;  // most bytes of a clone; 0: all
};

// Adjacent limbs in a frame.
struct Extent {
  std::uint32_t first;
  std::uint32_t limbs;
};

struct Program {
  std::vector<Instruction> code;
  std::vector<std::uint64_t> blank;      // initial state and fields of a packet
  std::vector<Extent> beginning;         // fields that must be initialized for a new packet
  std::vector<Extent> carried;           // fields that a replica copies from its original
  std::vector<std::uint64_t> constants;  // the last limbs of a frame
  std::uint32_t parameters = 0;          // place of the data of an entry
  std::uint32_t constants_at = 0;
  std::uint32_t parser = 0, ingress = 0, egress = 0, verify = 0, update = 0, deparse = 0;
  std::uint32_t no_error = 0;  // code of a parser that ends without an error
  std::uint32_t max_states = 0, max_passes = 0, drop_port = 0;
  std::vector<std::string> failures;
  std::map<std::uint32_t, std::vector<Extent>> field_lists;
  std::vector<Extent> metadata;  // fields that are reset in a clone
  Places places{};
  std::vector<RegisterArray> registers;
  std::vector<CounterArray> counters;
  std::vector<MeterArray> meters;
  std::map<std::uint32_t, std::vector<Extent>> learn_lists;
};

// A learn list and the limbs of its fields.
struct Digest {
  std::uint32_t list;
  std::vector<std::uint64_t> limbs;
};
constexpr std::size_t MAX_DIGESTS = std::size_t{1} << 16;  // that wait; the oldest are lost (switch/p4/v1model.py)

// The longest frame: fields, temporaries and constants (MAX_FRAME_LIMBS in switch/p4/native_code.py).
constexpr std::size_t MAX_FRAME_LIMBS = std::size_t{1} << 18;

struct Sent {
  std::uint32_t port;
  std::vector<std::uint8_t> data;
};

// A program and the state of the switch around it. One thread at a time.
class Machine {
 public:
  Machine(Program program, std::vector<Table> tables) : program_(std::move(program)), tables_(std::move(tables)) {}

  Table& table(std::size_t number) { return tables_.at(number); }
  void set_group(std::uint32_t number, std::vector<Replica> replicas) { groups_[number] = std::move(replicas); }
  void remove_group(std::uint32_t number) { groups_.erase(number); }
  // Adds the choices of a group; returns their number, from 1 on. Numbers freed by `remove_choices` are reused.
  std::uint32_t add_choices(Choices choices);
  void set_choices(std::uint32_t number, Choices choices) { choices_.at(number - 1) = std::move(choices); }
  void remove_choices(std::uint32_t number);
  std::vector<Digest> take_digests() {
    std::vector<Digest> taken(std::make_move_iterator(digests_.begin()), std::make_move_iterator(digests_.end()));
    digests_.clear();
    return taken;
  }
  void set_mirror(std::uint32_t number, MirrorSession session) { mirrors_[number] = std::move(session); }
  void remove_mirror(std::uint32_t number) { mirrors_.erase(number); }

  // Processes a packet, and appends the leaving packets to `sent`, in order. Appends nothing if it throws PacketLost.
  void process(std::uint32_t port, std::span<const std::uint8_t> data, std::uint64_t now_us, std::vector<Sent>& sent);
  // Copies of packets that the program dropped so far.
  std::uint64_t dropped() const { return dropped_; }
  // Packets lost so far because they caused more than max_passes passes.
  std::uint64_t endless() const { return endless_; }

 private:
  using Bytes = std::shared_ptr<std::vector<std::uint8_t>>;
  using Frame = std::unique_ptr<std::uint64_t[]>;
  using Kept = std::vector<std::pair<std::uint32_t, std::vector<std::uint64_t>>>;

  struct Packet {
    Frame frame;
    std::span<const std::uint8_t> payload;
    Bytes owner;  // of the payload, unless that is the caller's memory
  };
  struct Entering {
    std::span<const std::uint8_t> data;
    Bytes owner;
    std::uint32_t port;
    std::uint32_t kind;
    Kept kept;
  };
  struct Leaving {
    Packet packet;
    std::uint32_t port;
    std::shared_ptr<Packet> original;  // of a replica that was not copied yet
    std::uint32_t instance;
  };

  Frame new_frame();
  void release(Frame frame);
  Packet parse(const Entering& entering, std::uint64_t now_us);
  void ingress(const Entering& entering, std::uint64_t now_us);
  void egress(Leaving leaving, std::uint64_t now_us, std::vector<Sent>& sent);
  void clone_ingress(const Entering& entering, const Packet& packet, std::uint64_t now_us);
  void clone_egress(const Packet& packet);
  void learn(const std::uint64_t* frame);
  void replicate(Packet packet, const std::vector<Replica>& replicas);
  void become_replica(Leaving& leaving);
  Packet copy(const Packet& packet);
  static void copy_limbs(const std::uint64_t* from, std::uint64_t* to, const std::vector<Extent>& fields);
  // The session for which a packet's clone was requested; null without one.
  const MirrorSession* session_of(const std::uint64_t* frame) const;
  void replicate_clone(Packet clone, const Kept& brought, std::uint32_t kind, const MirrorSession& session);
  Kept kept(const std::uint64_t* frame, std::uint64_t list) const;
  static void restore(std::uint64_t* frame, const Kept& kept);
  void set(std::uint64_t* frame, std::uint32_t place, std::uint64_t value) const {
    if (place != ABSENT) frame[place] = value;
  }
  void run(std::uint64_t* f, std::uint32_t start, std::span<const std::uint8_t> packet);

  Program program_;
  std::vector<Table> tables_;
  std::map<std::uint32_t, std::vector<Replica>> groups_;
  std::map<std::uint32_t, MirrorSession> mirrors_;
  std::vector<Choices> choices_;
  std::vector<std::uint32_t> free_choices_;
  std::deque<Digest> digests_;
  std::vector<Frame> spare_;
  std::deque<Entering> entering_;
  std::deque<Leaving> leaving_;
  BitWriter hashed_;
  BitWriter emitted_;
  std::uint64_t stop_code_ = 0;
  bool stopped_ = false;
  std::uint64_t dropped_ = 0;
  std::uint64_t endless_ = 0;
};

}  // namespace fanin::p4
