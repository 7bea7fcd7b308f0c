/* Headers of a packet, as both targets parse them. A test compares the offsets of fanin_t with fanin/protocol/wire.py. */
#ifndef FANIN_HEADERS_P4
#define FANIN_HEADERS_P4

#include "constants.p4"
#include "sizes.p4"

typedef bit<48> mac_t;
typedef bit<32> ipv4_address_t;

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP = 0x0806;
const bit<8> PROTOCOL_UDP = 17;
const bit<16> ARP_REPLY = 2;
const bit<16> IPV4_BYTES = 20;
const bit<16> UDP_BYTES = 8;

header ethernet_t {
    mac_t destination;
    mac_t source;
    bit<16> ethertype;
}

/* ARP for IPv4 over Ethernet (RFC 826). */
header arp_t {
    bit<16> hardware;
    bit<16> protocol;
    bit<8> hardware_bytes;
    bit<8> protocol_bytes;
    bit<16> operation;
    mac_t sender_mac;
    ipv4_address_t sender;
    mac_t target_mac;
    ipv4_address_t target;
}

/* IPv4 without options (RFC 791); a packet with options is other traffic. */
header ipv4_t {
    bit<4> version;
    bit<4> words;
    bit<8> service;
    bit<16> total_bytes;
    bit<16> identification;
    bit<3> flags;
    bit<13> fragment;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    ipv4_address_t source;
    ipv4_address_t destination;
}

/* UDP (RFC 768). The switch neither verifies nor computes its checksum: a result has 0, "none". */
header udp_t {
    bit<16> source;
    bit<16> destination;
    bit<16> bytes;
    bit<16> checksum;
}

/* The fixed part of every packet of ours: docs/protocol.md, fanin/protocol/wire.py. */
header fanin_t {
    bit<16> magic;
    bit<8> version;
    bit<8> kind;
    bit<16> job;
    bit<8> worker;
    bit<8> flags;
    bit<32> generation;
    bit<32> slot;
    bit<32> base;
    bit<32> signature;
    bit<32> bitmap;
    bit<16> contributors;
    bit<8> code_count;
    bit<8> reserved;
    bit<32> checksum;
}

/* Words 0 and 1 of a NOTICE: bitmaps of the lost workers and of those that have left. */
header absent_t {
    bit<32> lost;
    bit<32> left;
}

#endif
