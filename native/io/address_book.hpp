// The switch's numbers for its peers. No two peers have the same one, and one that is forgotten is not given out again
// before all others have been; a machine passes it around and looks no further.
//
// Every sender gets a number, at first as a stranger. There may be anyone's packets on a port, so strangers are
// bounded, the oldest going first. A peer that a job took in is a member: kept until the job goes, or goes on without
// it, with a socket of its own. One socket may be a member of several jobs, and have several workers' places in one:
// its socket stays until the last of them goes.
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
  // Datagrams of one stranger that are read: a worker says HELLO a few times, and a window after the switch restarts.
  static constexpr double STRANGER_DATAGRAMS_PER_S = 1000.0;
  static constexpr double STRANGER_DATAGRAMS_AT_ONCE = 1024.0;

  struct Peer {
    SocketAddress remote;
    std::optional<SocketAddress> local;  // where it sent to, if the server listens on a wildcard
    bool pinned = false;                 // never forgotten: the parent of a leaf
    std::vector<std::uint16_t> jobs;     // that it is a member of
    BareRow bare_row;                    // at that socket
    UdpSocket socket;                    // of a member, if one could be had: connected, on the server's port
    Allowance allowance{STRANGER_DATAGRAMS_PER_S, STRANGER_DATAGRAMS_AT_ONCE};  // of a stranger

    bool is_member() const { return !jobs.empty(); }
    bool is_member_of(std::uint16_t job) const { return std::ranges::find(jobs, job) != jobs.end(); }
  };

  Address number(const SocketAddress& remote, const SocketAddress* local) {
    if (last_ != nullptr && last_->second.remote == remote) return last_->first;
    auto known = numbers_.find(remote);
    if (known == numbers_.end()) {
      forget_old_strangers();
      known = numbers_.emplace(remote, unused_number()).first;
      Peer& peer = peers_[known->second];
      peer.remote = remote;
      if (local != nullptr) peer.local = *local;
      strangers_.push_back(known->second);
    }
    last_ = &*peers_.find(known->second);
    return known->second;
  }

  // Null for a number that is forgotten.
  Peer* find(Address number) {
    const auto found = peers_.find(number);
    return found == peers_.end() ? nullptr : &found->second;
  }

  // Its members are strangers from now on, without sockets, but for those that another job has, too.
  void forget_job(std::uint16_t job) {
    for (auto& [number, peer] : peers_) end_membership(number, peer, job);
    forget_old_strangers();
  }

  // The same of one of them.
  void forget_member(Address number, std::uint16_t job) {
    if (Peer* const peer = find(number); peer != nullptr) end_membership(number, *peer, job);
    forget_old_strangers();
  }

  // Nobody is heard from now on; who the members are stays known.
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
  // A flood from ever new sources takes all numbers in some hours; members keep theirs.
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
