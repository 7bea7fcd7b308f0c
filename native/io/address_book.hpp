// The switch's numbers for its peers. No two peers have the same number, and a forgotten number is not assigned again
// before all others were; to a machine the numbers are opaque.
//
// Every sender gets a number, at first as a stranger. Since anybody may send to a port, the number of strangers is
// bounded, and the oldest is forgotten first. A peer that a job has admitted is a member: it is kept, with a socket of
// its own, until the job is removed or continues without it. One peer may be a member of several jobs, and have several
// workers' places in one: it is kept until the last membership ends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "machine/allowance.hpp"
#include "machine/overtaking.hpp"
#include "wire/sinks.hpp"
#include "io/udp_socket.hpp"

namespace fanin {

class AddressBook {
 public:
  static constexpr Address NOBODY = 0;
  static constexpr std::size_t MAX_STRANGERS = 1024;
  // Most datagrams per second that are read from one stranger: a worker says HELLO a few times, or, after a restart of
  // the switch, sends a window.
  static constexpr double STRANGER_DATAGRAMS_PER_S = 1000.0;
  static constexpr double STRANGER_DATAGRAMS_AT_ONCE = 1024.0;

  struct Peer {
    SocketAddress remote;
    std::optional<SocketAddress> local;  // address to which it sent, if the server listens on a wildcard
    bool pinned = false;                 // never forgotten: the parent of a leaf
    std::vector<std::uint16_t> jobs;     // of which it is a member
    BareRow bare_row;                    // of bare results sent through `socket`
    UdpSocket socket;                    // of a member, unless opening failed: connected, on the server's port
    Allowance allowance{STRANGER_DATAGRAMS_PER_S, STRANGER_DATAGRAMS_AT_ONCE};  // of a stranger

    bool is_member() const { return !jobs.empty(); }
    bool is_member_of(std::uint16_t job) const { return std::ranges::find(jobs, job) != jobs.end(); }
  };

  // The number of a sender. `local`: the address to which it sent, if the server listens on a wildcard. A stranger is
  // answered from the address that it asked last: a port may have another owner than before.
  Address number(const SocketAddress& remote, const SocketAddress* local) {
    if (last_ == nullptr || last_->second.remote != remote) {
      auto known = numbers_.find(remote);
      if (known == numbers_.end()) {
        forget_old_strangers();
        known = numbers_.emplace(remote, unused_number()).first;
        peers_[known->second].remote = remote;
        strangers_.push_back(known->second);
      }
      last_ = &*peers_.find(known->second);
    }
    Peer& peer = last_->second;
    if (local != nullptr && !peer.is_member() && !peer.pinned) peer.local = *local;
    return last_->first;
  }

  // The peer of a number; null for a forgotten number.
  Peer* find(Address number) {
    const auto found = peers_.find(number);
    return found == peers_.end() ? nullptr : &found->second;
  }

  // Turns a job's members into strangers, without sockets, unless they are members of another job as well.
  void forget_job(std::uint16_t job) {
    for (auto& [number, peer] : peers_) end_membership(number, peer, job);
    forget_old_strangers();
  }

  // Ends one peer's membership in a job, in the same way.
  void forget_member(Address number, std::uint16_t job) {
    if (Peer* const peer = find(number); peer != nullptr) end_membership(number, *peer, job);
    forget_old_strangers();
  }

  // Closes all sockets, so that nothing is received any more; members stay known.
  void close_sockets() {
    for (auto& [number, peer] : peers_) peer.socket.close();
  }

  template <typename Visit>
  void for_each_socket(Visit visit) const {
    for (const auto& [number, peer] : peers_) {
      if (peer.socket.is_open()) visit(peer.socket);
    }
  }

  std::size_t size() const { return peers_.size(); }

 private:
  // The next unused number. A flood from ever new sources uses up all numbers in some hours; members keep theirs.
  Address unused_number() {
    while (next_ == NOBODY || peers_.contains(next_)) ++next_;
    return next_++;
  }

  void end_membership(Address number, Peer& peer, std::uint16_t job) {
    if (std::erase(peer.jobs, job) == 0 || peer.is_member()) return;
    peer.socket.close();
    strangers_.push_back(number);
  }

  void forget_old_strangers() {
    last_ = nullptr;
    while (strangers_.size() >= MAX_STRANGERS) {
      const auto oldest = peers_.find(strangers_.front());
      strangers_.pop_front();
      // It may have become a member since.
      if (oldest == peers_.end() || oldest->second.is_member() || oldest->second.pinned) continue;
      numbers_.erase(oldest->second.remote);
      peers_.erase(oldest);
    }
  }

  Address next_ = 1;
  std::unordered_map<SocketAddress, Address, SocketAddressHash> numbers_;
  std::unordered_map<Address, Peer> peers_;
  std::deque<Address> strangers_;  // oldest first; some may be members by now
  std::pair<const Address, Peer>* last_ = nullptr;
};

}  // namespace fanin
