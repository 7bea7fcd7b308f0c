// Implementations of the tags of wire/gcm_siv.hpp, of which packet_tag.cpp chooses one.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kernel_table.hpp"  // FANIN_X86_KERNELS
#include "wire/packet_tag.hpp"

namespace fanin {

#if FANIN_X86_KERNELS
// Computes tags with registers of one block of 16 bytes. The keys of all datagrams are of GCM-SIV.
void gcm_siv_tags_of_one(std::span<const Tagged> datagrams, std::uint32_t* tags);
void gcm_siv_tags_of_two(std::span<const Tagged> datagrams, std::uint32_t* tags);
void gcm_siv_tags_of_four(std::span<const Tagged> datagrams, std::uint32_t* tags);
#endif

}  // namespace fanin
