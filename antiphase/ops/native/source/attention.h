// Attention of many queries: the maps are subtracted before the product with the values, as in
// antiphase/ops/blockwise.py, but for a block of 48 queries and a tile of keys at a time, so that scores stay in the
// cache that they were written to.
//
// Parts of the work are taken in a fixed order: the keys and values of a group are packed, then its blocks follow. A
// part waits only for parts taken before it, so there are no deadlocks, and every sum is computed in the same order for
// any number of threads.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "problem.h"
#include "products.h"
#include "work.h"

namespace {

constexpr int BLOCK = 48;  // queries; a multiple of ROWS
constexpr int TILE = 256;  // keys between two updates of a row's maximum; a multiple of every PANEL
constexpr int PACKED_AT_ONCE = 1024;  // keys
constexpr int MOST_SHARED = 4;  // heads of a block that share their second map
constexpr size_t SLOTS_BYTES = size_t(4) << 20;  // groups are packed ahead as long as they fit
static_assert(BLOCK % ROWS == 0);

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

// Queries and keys that see each other: a batch row, or one of several packed sequences.
struct Item {
  int64_t batch, first_query, queries, first_key, keys;
};

inline std::vector<Item> items_of(const antiphase_problem &call) {
  std::vector<Item> items;
  if (call.query_edges) {
    for (int64_t s = 0; s < call.sequences; ++s)
      items.push_back({0, call.query_edges[s], call.query_edges[s + 1] - call.query_edges[s], call.key_edges[s],
                       call.key_edges[s + 1] - call.key_edges[s]});
  } else {
    for (int64_t b = 0; b < call.batch; ++b) items.push_back({b, 0, call.queries, 0, call.keys});
  }
  return items;
}

// Scratch memory of the calling thread, and of each worker thread.
inline thread_local Arena shared_room, own_room;

template <typename In, int S, bool BACKWARD> class Attention {
  using T = typename Statistics<In>::type;
  using E = Operand<In>;
  static constexpr bool IN_PAIRS = STEPS<E> == 2;
  static constexpr int L = LANES<T>, PW = PANEL<T>, PW_STEPS = PW / STEPS<E>, GROUPS = BLOCK / ROWS, TP = TILE / PW;
  static constexpr int64_t END = std::numeric_limits<int64_t>::max();

  // Packed keys and values of a group, and the sums of their gradients.
  struct Slot {
    E *keys_across;    // (K, panels, d steps, PW)
    E *keys_along;     // (K, panels, PW steps, columns), for the gradient of queries
    E *values_across;  // (panels, dv steps, PW), for the gradient of the map
    E *values_along;   // (panels, PW steps, columns)
    T *key_sums[2], *value_sum;  // (M, columns); in the gradients themselves if their layout allows it
    std::atomic<int64_t> *passed;  // by block: panel up to which its sums are added; the largest number at its end
    std::atomic<int64_t> *ended;   // at least this many of the first blocks have ended
  };
  // Memory of a thread for one block of queries and the heads that share their second map. Maps are counted so: the
  // first maps of these heads, then the second map. Forward takes one head after the other, in the place of the first.
  struct Room {
    T *scores[MOST_SHARED + 1];  // by map: (panels, BLOCK, PW)
    T *slope[MOST_SHARED];       // by head, in backward: (panels, BLOCK, PW): the gradient of the difference
    E *query;                    // (maps, BLOCK, d stride)
    T *result;                   // (BLOCK, dv columns): outputs
    E *grad;                     // (heads, BLOCK, dv stride): gradients of outputs
    E *query_down, *grad_down;   // (maps, BLOCK steps, d columns), (heads, BLOCK steps, dv columns): the same, in pairs
    E *slopes_down;              // (maps, panels of a tile, BLOCK steps, PW): gradients of the scores, in pairs
    T *grad_query;               // (maps, BLOCK, d columns)
    T *maximum;                  // (S, tiles, BLOCK): maximum subtracted from a tile's exponents
    E *converted;   // (L, largest number of steps of d and a part of dv)
    uint8_t *hides;  // (panels): keys hidden by a mask that all queries share: 0 none, 1 some, 2 all
  };
  struct Block {
    Item item;
    int64_t group, head, first, rows, offset, panels_begin, panels_end;  // head: the first, an index over all heads
    int groups;
    int64_t begin[GROUPS], end[GROUPS];  // panels that rows of a group can see
    const uint8_t *mask;
    bool same_mask;  // all queries have the same mask
  };

 public:
  explicit Attention(const antiphase_problem &call) : call_(call), items_(items_of(call)) {
    d_ = call.width, dv_ = call.value_width, part_ = dv_ / call.value_parts, K_ = call.key_maps;
    d_columns_ = round_up(d_, L), dv_columns_ = round_up(dv_, L);
    d_steps_ = steps_of(d_), part_steps_ = steps_of(part_);
    dv_steps_ = part_steps_ * call.value_parts;
    d_stride_ = IN_PAIRS ? d_steps_ : d_columns_, dv_stride_ = IN_PAIRS ? dv_steps_ : dv_columns_;
    shared_ = int(call.shared), maps_ = S == 2 ? shared_ + 1 : 1, held_ = BACKWARD ? maps_ : S;
    factor_ = T(call.scale * 1.4426950408889634074);
    direct_keys_ = std::is_same_v<In, T> && d_ == d_columns_;
    direct_values_ = std::is_same_v<In, T> && part_ % L == 0;
    for (const Item &item : items_) {
      most_keys_ = std::max(most_keys_, item.keys);
      most_blocks_ = std::max(most_blocks_, divide_up(item.queries, BLOCK));
    }
    most_panels_ = divide_up(most_keys_, PW);
  }

  // Returns 0, or 1 if the system is out of memory.
  int run() {
    const int64_t all = int64_t(items_.size()) * call_.groups;
    if (all == 0) return 0;
    Cutter counted(nullptr);
    cut_slot(counted);
    const int64_t fitting = std::max<int64_t>(1, SLOTS_BYTES / std::max<size_t>(1, counted.used()));
    slots_ = std::min<int64_t>({fitting, all, 16});
    const int64_t ahead = std::min<int64_t>(slots_ - 1, 2);
    char *base = shared_room.take(counted.used() * slots_ + 64);
    if (!base) return 1;
    Cutter cutter(base);
    for (int64_t s = 0; s < slots_; ++s) slot_[s] = cut_slot(cutter);
    packed_.reset(new std::atomic<int64_t>[all]());
    done_.reset(new std::atomic<int64_t>[all]());
    closed_.reset(new std::atomic<int32_t>[all]());
    int64_t total = 0;
    for (int64_t i = 0; i < all + ahead; ++i) {
      if (i < all) starts_.push_back(total), parts_.push_back({i, true}), total += packs(i);
      if (i >= ahead) starts_.push_back(total), parts_.push_back({i - ahead, false}), total += blocks(i - ahead);
    }
    total_ = total;
    const unsigned threads = unsigned(std::max<int64_t>(1, std::min<int64_t>(call_.threads, total)));
    if (threads == 1 || !call_.parallel)
      work();
    else
      call_.parallel([](void *self) { static_cast<Attention *>(self)->work(); }, this, threads, 0);
    shared_room.trim();
    return next_.load() >= total_ ? 0 : 1;
  }

 private:
  // Number of operands for a row of numbers, padded as the products require.
  static int64_t steps_of(int64_t width) { return round_up(divide_up(width, STEPS<E>), TILE_STEPS); }
  const Item &item_of(int64_t group) const { return items_[group / call_.groups]; }
  int64_t packs(int64_t group) const { return std::max<int64_t>(1, divide_up(item_of(group).keys, PACKED_AT_ONCE)); }
  int64_t blocks(int64_t group) const {
    return std::max<int64_t>(1, divide_up(item_of(group).queries, BLOCK) * (call_.repeats / shared_));
  }

  Slot cut_slot(Cutter &cutter) const {
    Slot slot{};
    const int64_t keys = most_panels_ * PW;
    slot.keys_across = cutter.cut<E>(K_ * keys * d_steps_);
    if (BACKWARD) {
      slot.keys_along = cutter.cut<E>(K_ * keys / STEPS<E> * d_columns_);
      slot.values_across = cutter.cut<E>(keys * dv_steps_);
      if (!direct_keys_)
        for (int k = 0; k < K_; ++k) slot.key_sums[k] = cutter.cut<T>(keys * d_columns_);
      if (!direct_values_) slot.value_sum = cutter.cut<T>(keys * dv_columns_);
      slot.passed = cutter.cut<std::atomic<int64_t>>(std::max<int64_t>(1, most_blocks_ * call_.repeats));
      slot.ended = cutter.cut<std::atomic<int64_t>>(1);
    } else {
      slot.values_along = cutter.cut<E>(keys / STEPS<E> * dv_columns_);
    }
    return slot;
  }
  Room cut_room(Cutter &cutter) const {
    Room room{};
    for (int m = 0; m < held_; ++m) room.scores[m] = cutter.cut<T>(most_panels_ * BLOCK * PW);
    room.query = room.query_down = cutter.cut<E>(held_ * BLOCK * d_stride_);
    if (BACKWARD) {
      for (int h = 0; h < shared_; ++h) room.slope[h] = cutter.cut<T>(most_panels_ * BLOCK * PW);
      room.grad = room.grad_down = cutter.cut<E>(shared_ * BLOCK * dv_stride_);
      room.grad_query = cutter.cut<T>(maps_ * BLOCK * d_columns_);
      if (IN_PAIRS) {
        room.query_down = cutter.cut<E>(maps_ * BLOCK / 2 * d_columns_);
        room.grad_down = cutter.cut<E>(shared_ * BLOCK / 2 * dv_columns_);
        room.slopes_down = cutter.cut<E>(maps_ * TP * BLOCK / 2 * PW);
      }
    } else {
      room.result = cutter.cut<T>(BLOCK * dv_columns_);
    }
    room.maximum = cutter.cut<T>(S * divide_up(std::max<int64_t>(1, most_panels_), TP) * BLOCK);
    room.converted = cutter.cut<E>(L * std::max(d_steps_, part_steps_));
    room.hides = cutter.cut<uint8_t>(most_panels_);
    return room;
  }

  void work() {
    Cutter counted(nullptr);
    cut_room(counted);
    char *base = own_room.take(counted.used() + 64);
    if (!base) return;  // other threads do the work; if there are none, run reports the error
    Cutter cutter(base);
    const Room room = cut_room(cutter);
    const Tiles tiles;
    for (int64_t ticket; (ticket = next_.fetch_add(1)) < total_;) {
      const int64_t part = std::upper_bound(starts_.begin(), starts_.end(), ticket) - starts_.begin() - 1;
      const auto [group, packs_here] = parts_[part];
      Slot &slot = slot_[group % slots_];
      if (packs_here) {
        if (group >= slots_) wait_until([&] { return closed_[group - slots_].load() != 0; });
        pack(group, ticket - starts_[part], slot, room);
        packed_[group].fetch_add(1);
      } else {
        wait_until([&] { return packed_[group].load() == packs(group); });
        attend(group, ticket - starts_[part], slot, room);
        if (done_[group].fetch_add(1) + 1 == blocks(group)) {
          if (BACKWARD) write_sums(group, slot);
          closed_[group].store(1);
        }
      }
    }
    own_room.trim();
  }

  // The first key or value of a group.
  const In *key_rows(int64_t group, int map) const {
    const Item &item = item_of(group);
    return static_cast<const In *>(call_.key) + item.batch * call_.key_stride[0] +
           (group % call_.groups * K_ + map) * call_.key_stride[1] + item.first_key * call_.key_stride[2];
  }
  const In *value_rows(int64_t group, int64_t part) const {
    const Item &item = item_of(group);
    return static_cast<const In *>(call_.value) + item.batch * call_.value_stride[0] +
           (group % call_.groups * call_.value_parts + part) * call_.value_stride[1] +
           item.first_key * call_.value_stride[2];
  }

  void pack(int64_t group, int64_t index, Slot &slot, const Room &room) {
    const Item &item = item_of(group);
    const int64_t begin = index * PACKED_AT_ONCE, end = std::min(item.keys, begin + PACKED_AT_ONCE);
    const int64_t panels = divide_up(item.keys, PW);
    const int64_t parts = call_.value_parts;
    for (int64_t p = begin / PW; p * PW < end; ++p) {
      const int64_t first = p * PW;
      const int count = int(std::min<int64_t>(PW, item.keys - first));
      for (int k = 0; k < K_; ++k) {
        const In *rows = key_rows(group, k) + first * call_.key_stride[2];
        pack_across(rows, call_.key_stride[2], count, d_, slot.keys_across + (k * panels + p) * d_steps_ * PW, room);
        if (BACKWARD)
          pack_along(rows, call_.key_stride[2], count, 0, d_, d_columns_, d_columns_,
                     slot.keys_along + (k * panels + p) * d_columns_ * PW_STEPS);
      }
      for (int64_t part = 0; part < parts; ++part) {
        const In *rows = value_rows(group, part) + first * call_.value_stride[2];
        if (BACKWARD)
          pack_across(rows, call_.value_stride[2], count, part_,
                      slot.values_across + (p * dv_steps_ + part * part_steps_) * PW, room);
        else
          pack_along(rows, call_.value_stride[2], count, part * part_, part_,
                     part + 1 == parts ? dv_columns_ : (part + 1) * part_, dv_columns_,
                     slot.values_along + p * dv_columns_ * PW_STEPS);
      }
    }
    if (BACKWARD) clear_sums(group, begin, end, index == 0, slot);
  }

  // (count, depth) to (depth steps, PW), with zeros after the last row and column
  void pack_across(const In *rows, int64_t stride, int count, int64_t depth, E *to, const Room &room) {
    for (int half = 0; half < PW; half += L) {
      const int here = std::max(0, std::min(L, count - half));
      const In *from[L] = {};
      for (int i = 0; i < here; ++i) from[i] = rows + (half + i) * stride;
      const int64_t steps = steps_of(depth);
      const E *whole[L] = {};
      for (int i = 0; i < here; ++i) {
        if constexpr (std::is_same_v<In, E>) {
          whole[i] = from[i];
        } else {
          E *converted = room.converted + i * steps;
          load_row(from[i], depth, steps, converted);
          whole[i] = converted;
        }
      }
      int64_t k = 0;
      for (; k + L <= steps; k += L) {
        Vec<E> block[L];
        for (int i = 0; i < L; ++i) block[i] = i < here ? load(whole[i] + k) : Vec<E>{};
        transpose<E>(block);
        for (int i = 0; i < L; ++i) store(to + (k + i) * PW + half, block[i]);
      }
      for (; k < steps; ++k)
        for (int i = 0; i < L; ++i) to[k * PW + half + i] = i < here ? whole[i][k] : E(0);
    }
  }

  // (count, width) to columns first to stop of (PW steps, columns), in strips of two vectors; zeros after the last row
  // and column
  void pack_along(const In *rows, int64_t stride, int count, int64_t first, int64_t width, int64_t stop,
                  int64_t columns, E *to) {
    for (int64_t c = first; c < stop;) {
      const int64_t strip = c / (2 * L) * (2 * L), strip_width = std::min<int64_t>(2 * L, columns - strip);
      const int64_t until = std::min(stop, strip + strip_width), real = std::min(until, first + width);
      E *target = to + strip * PW_STEPS + (c - strip);
      for (int j = 0; j < PW; j += STEPS<E>, target += strip_width)
        load_down(rows + j * stride + (c - first), stride, count - j, std::max<int64_t>(0, real - c), until - c, target);
      c = until;
    }
  }

  // A row of `width` numbers as `steps` operands, padded with zeros.
  static void load_row(const In *from, int64_t width, int64_t steps, E *to) {
    int64_t c = 0;
    if constexpr (IN_PAIRS) {
      std::memcpy(to, from, size_t(width / 2) * sizeof(E));
      c = width / 2;
      if (width % 2) to[c++] = from[width - 1].bits;
    } else {
      for (; c < width; ++c) to[c] = number(from[c]);
    }
    for (; c < steps; ++c) to[c] = E(0);
  }
  // The rows of one operand, one below the other, as `columns` operands; zeros after the last row and column.
  static void load_down(const In *from, int64_t stride, int64_t rows, int64_t width, int64_t columns, E *to) {
    int64_t c = 0;
    if constexpr (IN_PAIRS) {
      if (rows > 1)
        for (const In *next = from + stride; c < width; ++c) to[c] = pair_of(from[c], next[c]);
      else if (rows == 1)
        for (; c < width; ++c) to[c] = from[c].bits;
    } else if (rows > 0) {
      for (; c < width; ++c) to[c] = number(from[c]);
    }
    for (; c < columns; ++c) to[c] = E(0);
  }

  In *grad_key_rows(int64_t group, int map) const {
    const Item &item = item_of(group);
    return static_cast<In *>(call_.grad_key) +
           (((item.batch * call_.groups + group % call_.groups) * K_ + map) * call_.keys + item.first_key) * d_;
  }
  In *grad_value_rows(int64_t group, int64_t part) const {
    const Item &item = item_of(group);
    return static_cast<In *>(call_.grad_value) +
           (((item.batch * call_.groups + group % call_.groups) * call_.value_parts + part) * call_.keys +
            item.first_key) *
               part_;
  }

  void clear_sums(int64_t group, int64_t begin, int64_t end, bool is_first, Slot &slot) {
    if (is_first) {
      for (int64_t i = 0; i < blocks(group); ++i) slot.passed[i].store(0);
      slot.ended->store(0);
    }
    // If a slot points into the gradients, all packing threads set its pointers to the same values before any block
    // starts.
    for (int k = 0; k < K_; ++k) {
      T *sums = direct_keys_ ? reinterpret_cast<T *>(grad_key_rows(group, k)) : slot.key_sums[k];
      std::fill(sums + begin * d_columns_, sums + end * d_columns_, T(0));
    }
    if (direct_values_)
      for (int64_t part = 0; part < call_.value_parts; ++part) {
        T *sums = reinterpret_cast<T *>(grad_value_rows(group, part));
        std::fill(sums + begin * part_, sums + end * part_, T(0));
      }
    else
      std::fill(slot.value_sum + begin * dv_columns_, slot.value_sum + end * dv_columns_, T(0));
  }

  void write_sums(int64_t group, const Slot &slot) {
    const int64_t keys = item_of(group).keys, parts = call_.value_parts;
    if (!direct_keys_)
      for (int k = 0; k < K_; ++k) {
        In *to = grad_key_rows(group, k);
        for (int64_t j = 0; j < keys; ++j)
          for (int64_t c = 0; c < d_; ++c) put(to + j * d_ + c, slot.key_sums[k][j * d_columns_ + c]);
      }
    if (!direct_values_)
      for (int64_t part = 0; part < parts; ++part) {
        In *to = grad_value_rows(group, part);
        for (int64_t j = 0; j < keys; ++j)
          for (int64_t c = 0; c < part_; ++c)
            put(to + j * part_ + c, slot.value_sum[j * dv_columns_ + part * part_ + c]);
      }
  }

  // The last key + 1 and the first key that a query sees, given causality and window.
  int64_t keys_end(const Block &block, int64_t row) const {
    const int64_t after = block.offset + block.first + row + 1;
    return std::max<int64_t>(0, call_.causal || call_.window ? std::min(block.item.keys, after) : block.item.keys);
  }
  int64_t keys_begin(const Block &block, int64_t row) const {
    return call_.window ? std::max<int64_t>(0, block.offset + block.first + row - call_.window + 1) : 0;
  }

  Block block_of(int64_t group, int64_t index, const Room &room) const {
    Block block{};
    block.item = item_of(group);
    const int64_t count = divide_up(block.item.queries, BLOCK);
    const int64_t within = BACKWARD ? index % count : count - 1 - index % count;  // the longest blocks first
    block.group = group % call_.groups;
    block.head = block.group * call_.repeats + index / count * shared_;
    block.first = within * BLOCK;
    block.rows = std::min<int64_t>(BLOCK, block.item.queries - block.first);
    block.offset = block.item.keys - block.item.queries;
    block.groups = int(divide_up(block.rows, ROWS));
    if (call_.mask) {
      block.mask = call_.mask + block.item.batch * call_.mask_stride[0] + block.head * call_.mask_stride[1] +
                   block.first * call_.mask_stride[2];
      block.same_mask = call_.mask_stride[2] == 0;
    }
    int64_t least = 0, most = divide_up(block.item.keys, PW);
    if (block.mask && block.same_mask) {
      for (int64_t p = 0; p < most; ++p) {
        const int64_t keys = std::min<int64_t>(PW, block.item.keys - p * PW);
        int64_t seen = 0;
        for (int64_t j = 0; j < keys; ++j) seen += block.mask[p * PW + j] != 0;
        room.hides[p] = seen == keys ? 0 : seen ? 1 : 2;
      }
      while (least < most && room.hides[least] == 2) ++least;
      while (least < most && room.hides[most - 1] == 2) --most;
    }
    for (int g = 0; g < block.groups; ++g) {
      const int64_t last_row = std::min<int64_t>((g + 1) * ROWS, block.rows) - 1;
      block.begin[g] = std::max(least, keys_begin(block, g * ROWS) / PW);
      block.end[g] = std::max(block.begin[g], std::min(most, divide_up(keys_end(block, last_row), PW)));
    }
    block.panels_begin = block.begin[0];
    block.panels_end = block.end[block.groups - 1];
    return block;
  }

  // Writes -inf to the hidden scores (PW) of a row; the panel index counts from the first key.
  void hide(const Block &block, const Room &room, int64_t row, int64_t panel, T *scores) const {
    const int64_t first = panel * PW, begin = keys_begin(block, row) - first, end = keys_end(block, row) - first;
    const Vec<T> hidden = splat(-std::numeric_limits<T>::infinity());
    if (begin > 0 || end < PW) {
      const auto bound = [](int64_t x) { return Int<T>(std::max<int64_t>(-PW, std::min<int64_t>(2 * PW, x))); };
      const IntVec<T> low = IntVec<T>{} + bound(begin), high = IntVec<T>{} + bound(end);
      for (int half = 0; half < PW; half += L) {
        const IntVec<T> key = iota<T>() + half;
        const Vec<T> x = load(scores + half);
        store<T>(scores + half, ((key >= low) & (key < high)) ? x : hidden);
      }
    }
    if (block.mask && !(block.same_mask && room.hides[panel] == 0)) {
      const uint8_t *bytes = block.mask + row * call_.mask_stride[2] + first;
      uint8_t last[PW];
      if (block.item.keys - first < PW) {  // do not read beyond the mask
        std::memset(last, 0, sizeof(last));
        std::memcpy(last, bytes, size_t(block.item.keys - first));
        bytes = last;
      }
      for (int half = 0; half < PW; half += L) {
        ByteVec<T> seen;
        std::memcpy(&seen, bytes + half, sizeof(seen));
        const Vec<T> x = load(scores + half);
        store<T>(scores + half, __builtin_convertvector(seen, IntVec<T>) != 0 ? x : hidden);
      }
    }
  }
  // Hides keys from rows in the panels from begin to end.
  void hide_all(const Block &block, const Room &room, int64_t row, int64_t begin, int64_t end, T *scores) const {
    const int64_t clear = divide_up(keys_begin(block, row), PW), stop = keys_end(block, row) / PW;
    for (int64_t p = begin; p < end; ++p) {
      if (p >= clear && p < stop) {
        if (!block.mask) p = stop;  // without a mask, nothing is hidden between the two edges
        else if (block.same_mask && room.hides[p] == 0) continue;
        if (p >= end) break;
      }
      hide(block, room, row, p, scores + (p - begin) * BLOCK * PW);
    }
  }

  T *scores_at(const Block &block, T *scores, int64_t panel, int64_t row) const {
    return scores + ((panel - block.panels_begin) * BLOCK + row) * PW;
  }

  // Rows of a block, `all` including padding rows: (all, row_stride) and, for pairs, also (all / 2, columns). A row
  // consists of several parts, each padded to whole operands.
  void load_block(const In *from, int64_t stride, int64_t rows, int64_t all, int64_t width, int64_t parts,
                  int64_t row_stride, int64_t columns, E *to, E *down) const {
    const int64_t part = width / parts, steps = steps_of(part);
    for (int64_t r = 0; r < all; ++r, to += row_stride) {
      if (r >= rows)
        std::fill(to, to + row_stride, E(0));
      else
        for (int64_t i = 0; i < parts; ++i)
          load_row(from + r * stride + i * part, part, i + 1 == parts ? row_stride - i * steps : steps, to + i * steps);
    }
    if (IN_PAIRS && BACKWARD)
      for (int64_t r = 0; r < all; r += 2)
        load_down(from + r * stride, stride, rows - r, width, columns, down + r / 2 * columns);
  }

  void attend(int64_t group, int64_t index, const Slot &slot, const Room &room) {
    if (item_of(group).queries == 0) return;
    const Block block = block_of(group, index, room);
    T lam[MOST_SHARED][BLOCK] = {};
    if (S == 2)
      for (int h = 0; h < shared_; ++h)
        for (int64_t r = 0; r < block.rows; ++r)
          lam[h][r] = static_cast<const T *>(call_.lam)[block.item.batch * call_.lam_stride[0] +
                                                        (block.head + h) * call_.lam_stride[1] +
                                                        (block.item.first_query + block.first + r) * call_.lam_stride[2]];
    if constexpr (BACKWARD) {
      attend_back(group, index, slot, room, block, lam);
    } else {
      Sums sums;
      for (int h = 0; h < shared_; ++h) attend_forward(slot, room, block, h, lam[h], sums);
    }
  }

  // Queries of a map of a head, counted from the block's first, to a place in the room.
  void load_queries(const Block &block, const Room &room, int head, int map, int place) const {
    const In *from = static_cast<const In *>(call_.query) + block.item.batch * call_.query_stride[0] +
                     ((block.head + head) * S + map) * call_.query_stride[1] +
                     (block.item.first_query + block.first) * call_.query_stride[2];
    load_block(from, call_.query_stride[2], block.rows, block.groups * ROWS, d_, 1, d_stride_, d_columns_,
               room.query + place * BLOCK * d_stride_, room.query_down + place * (BLOCK / STEPS<E>) * d_columns_);
  }
  // Largest score and 1 / sum of the first row; those of the next rows follow.
  T *statistics_of(const Block &block, int head, int map) const {
    const int64_t rows = (block.item.batch * call_.groups * call_.repeats + block.head + head) * S + map;
    return static_cast<T *>(call_.statistics) + (rows * call_.queries + block.item.first_query + block.first) * 2;
  }

  void score(const Block &block, const E *rows, int64_t row_stride, int64_t steps, const E *panels,
             int64_t p0, int64_t p1, T *scores) const {
    for (int64_t p = p0; p < p1; ++p)
      for (int g = 0; g < block.groups; ++g)
        if (block.begin[g] <= p && p < block.end[g])
          multiply<E>(rows + g * ROWS * row_stride, row_stride, panels + p * steps * PW, steps,
                      scores_at(block, scores, p, g * ROWS));
  }

  // result (rows, columns) += weights of a tile · packed values along the keys
  void weigh_tile(const Block &block, T *weights, const E *along, int64_t columns, int64_t p0, int64_t p1,
                  T *result) const {
    for (int64_t c = 0; c < columns; c += 2 * L)
      for (int g = 0; g < block.groups; ++g) {
        const int64_t begin = std::max(p0, block.begin[g]), end = std::min(p1, block.end[g]);
        if (begin >= end) continue;
        const E *from = reinterpret_cast<const E *>(scores_at(block, weights, begin, g * ROWS));
        const E *values = along + (begin * columns + c) * PW_STEPS;
        T *to = result + g * ROWS * columns + c;
        if (columns - c >= 2 * L)
          weigh<E, 2>(from, BLOCK * PW, values, columns * PW_STEPS, to, columns, end - begin);
        else
          weigh<E, 1>(from, BLOCK * PW, values, columns * PW_STEPS, to, columns, end - begin);
      }
  }

  // Of the maps of a head: largest score, sum of exponentials and its inverse.
  struct Sums {
    T running[S][BLOCK], sum[S][BLOCK], inverse[S][BLOCK];
  };

  // One head of a block, counted from its first, whose second map serves the others.
  void attend_forward(const Slot &slot, const Room &room, const Block &block, int head, const T *lam, Sums &sums) {
    auto &[running, sum, inverse] = sums;
    const int formed = head == 0 ? S : 1;  // maps
    const int64_t panels = divide_up(block.item.keys, PW);
    const int64_t tiles = divide_up(block.panels_end - block.panels_begin, TP);
    for (int m = 0; m < formed; ++m) {
      load_queries(block, room, head, m, m);
      for (int r = 0; r < BLOCK; ++r) running[m][r] = -std::numeric_limits<T>::infinity(), sum[m][r] = 0;
    }
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t p0 = block.panels_begin + t * TP, p1 = std::min(block.panels_end, p0 + TP);
      for (int m = 0; m < formed; ++m) {
        score(block, room.query + m * BLOCK * d_stride_, d_stride_, d_steps_,
              slot.keys_across + (m % K_) * panels * d_steps_ * PW, p0, p1, room.scores[m]);
        for (int64_t r = 0; r < block.rows; ++r)
          room.maximum[(m * tiles + t) * BLOCK + r] =
              exponentials(block, room, r, p0, p1, room.scores[m], running[m][r], sum[m][r]);
      }
    }
    std::fill(room.result, room.result + block.groups * ROWS * dv_columns_, T(0));
    for (int m = 0; m < formed; ++m)
      for (int64_t r = 0; r < block.rows; ++r) inverse[m][r] = sum[m][r] == 0 ? nothing_seen(block, r) : 1 / sum[m][r];
    if (call_.statistics)
      for (int m = 0; m < S; ++m) {
        T *const statistics = statistics_of(block, head, m);
        for (int64_t r = 0; r < block.rows; ++r) {
          statistics[r * 2] = sum[m][r] == 0 ? T(0) : running[m][r];
          statistics[r * 2 + 1] = inverse[m][r];
        }
      }
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t p0 = block.panels_begin + t * TP, p1 = std::min(block.panels_end, p0 + TP);
      for (int64_t r = 0; r < block.rows; ++r) {
        const auto share = [&](int m) {
          const T then = room.maximum[(m * tiles + t) * BLOCK + r];
          return then == running[m][r] ? inverse[m][r] : exp2_one((then - running[m][r]) * factor_) * inverse[m][r];
        };
        const int64_t begin = std::max(p0, block.begin[r / ROWS]), end = std::min(p1, block.end[r / ROWS]);
        if (begin >= end) continue;
        const Vec<T> first = splat(share(0)), second = splat(S == 2 ? lam[r] * share(S - 1) : T(0));
        T *x = scores_at(block, room.scores[0], begin, r), *y = scores_at(block, room.scores[S - 1], begin, r);
        const auto weight = [&](int half) {
          return S == 2 ? first * load(x + half) - second * load(y + half) : first * load(x + half);
        };
        for (int64_t p = begin; p < end; ++p, x += BLOCK * PW, y += BLOCK * PW) put_along(x, weight(0), weight(L));
      }
      weigh_tile(block, room.scores[0], slot.values_along, dv_columns_, p0, p1, room.result);
    }
    In *out = static_cast<In *>(call_.out) + block.item.batch * call_.out_stride[0] +
              (block.head + head) * call_.out_stride[1] + (block.item.first_query + block.first) * call_.out_stride[2];
    for (int64_t r = 0; r < block.rows; ++r)
      for (int64_t c = 0; c < dv_; ++c) put(out + r * call_.out_stride[2] + c, room.result[r * dv_columns_ + c]);
  }

  // PW weights of a row, written over its scores.
  static INLINE void put_along(T *to, Vec<T> first, Vec<T> second) {
#if defined(__AVX512BF16__)
    if constexpr (IN_PAIRS) {
      store<E>(reinterpret_cast<E *>(to), pairs_along(first, second));
      return;
    }
#endif
    store<T>(to, first), store<T>(to + L, second);
  }

  // The normalizer of a row whose exponentials are all zero: 0 if it sees no key, NaN if all its visible scores are
  // -inf.
  T nothing_seen(const Block &block, int64_t row) const {
    const int64_t begin = keys_begin(block, row), end = keys_end(block, row);
    bool sees = begin < end;
    if (sees && block.mask) {
      const uint8_t *mask = block.mask + row * call_.mask_stride[2];
      sees = std::any_of(mask + begin, mask + end, [](uint8_t b) { return b; });
    }
    return sees ? std::numeric_limits<T>::quiet_NaN() : T(0);
  }

  // Replaces the scores of a row in a tile by 2^((score - maximum) · factor); returns that maximum, the largest so far.
  T exponentials(const Block &block, const Room &room, int64_t row, int64_t p0, int64_t p1, T *scores, T &running,
                 T &sum) const {
    const int64_t begin = std::max(p0, block.begin[row / ROWS]), end = std::min(p1, block.end[row / ROWS]);
    if (begin >= end) return running;
    T *const x = scores_at(block, scores, begin, row);
    hide_all(block, room, row, begin, end, x);
    Vec<T> most = splat(-std::numeric_limits<T>::infinity()), sums{}, more{};
    for (int64_t p = begin; p < end; ++p) {
      T *here = x + (p - begin) * BLOCK * PW;
      most = larger<T>(most, larger<T>(load(here), load(here + L)));
    }
    const T tile_maximum = max_of<T>(most);
    const T maximum = tile_maximum > running ? tile_maximum : running;
    const Vec<T> less = splat(maximum == -std::numeric_limits<T>::infinity() ? T(0) : maximum);
    for (int64_t p = begin; p < end; ++p) {
      T *here = x + (p - begin) * BLOCK * PW;
      const Vec<T> a = exp2_of((load(here) - less) * factor_), b = exp2_of((load(here + L) - less) * factor_);
      store<T>(here, a), store<T>(here + L, b);
      sums += a, more += b;
    }
    if (maximum != running) sum = running == -std::numeric_limits<T>::infinity() ? T(0) : sum * exp2_one((running - maximum) * factor_);
    sum += sum_of<T>(sums + more);
    return running = maximum;
  }

  void attend_back(int64_t group, int64_t index, const Slot &slot, const Room &room, const Block &block,
                   const T (&lam)[MOST_SHARED][BLOCK]) {
    const int64_t panels = divide_up(block.item.keys, PW), heads = call_.groups * call_.repeats;
    const int64_t first_row = block.item.first_query + block.first;
    for (int m = 0; m < maps_; ++m) load_queries(block, room, m < shared_ ? m : 0, m >= shared_, m);
    for (int h = 0; h < shared_; ++h) {
      const In *grad = static_cast<const In *>(call_.grad) + block.item.batch * call_.grad_stride[0] +
                       (block.head + h) * call_.grad_stride[1] + first_row * call_.grad_stride[2];
      load_block(grad, call_.grad_stride[2], block.rows, block.groups * ROWS, dv_, call_.value_parts, dv_stride_,
                 dv_columns_, room.grad + h * BLOCK * dv_stride_, room.grad_down + h * (BLOCK / STEPS<E>) * dv_columns_);
    }
    std::fill(room.grad_query, room.grad_query + maps_ * BLOCK * d_columns_, T(0));
    T means[S][MOST_SHARED][BLOCK] = {};  // row sums of P · dP
    for (int64_t p0 = block.panels_begin; p0 < block.panels_end; p0 += TP) {
      const int64_t p1 = std::min(block.panels_end, p0 + TP);
      for (int m = 0; m < maps_; ++m)
        score(block, room.query + m * BLOCK * d_stride_, d_stride_, d_steps_,
              slot.keys_across + (m >= shared_) % K_ * panels * d_steps_ * PW, p0, p1, room.scores[m]);
      for (int h = 0; h < shared_; ++h)
        score(block, room.grad + h * BLOCK * dv_stride_, dv_stride_, dv_steps_, slot.values_across, p0, p1,
              room.slope[h]);
      for (int64_t r = 0; r < block.rows; ++r) {
        const int64_t begin = std::max(p0, block.begin[r / ROWS]), end = std::min(p1, block.end[r / ROWS]);
        if (begin >= end) continue;
        for (int m = 0; m < maps_; ++m) {
          const bool is_second = m >= shared_;
          hide_all(block, room, r, begin, end, scores_at(block, room.scores[m], begin, r));
          const T *statistics = statistics_of(block, is_second ? 0 : m, is_second) + r * 2;
          T *sum = means[is_second ? S - 1 : 0][is_second ? 0 : m] + r;
          *sum += map_of(block, room.scores[m], room.slope[is_second ? 0 : m], r, begin, end, statistics);
        }
        for (int h = 1; S == 2 && h < shared_; ++h)
          means[S - 1][h][r] += dot_of(block, room.scores[shared_], room.slope[h], r, begin, end);
      }
    }
    if (S == 2)
      for (int h = 0; h < shared_; ++h)
        for (int64_t r = 0; r < block.rows; ++r)
          static_cast<T *>(call_.grad_lam)[(block.item.batch * heads + block.head + h) * call_.queries + first_row + r] =
              -means[S - 1][h][r];
    T *key_sums[2];
    for (int k = 0; k < K_; ++k)
      key_sums[k] = direct_keys_ ? reinterpret_cast<T *>(grad_key_rows(group, k)) : slot.key_sums[k];
    for (int64_t p0 = block.panels_begin; p0 < block.panels_end; p0 += TP) {
      const int64_t p1 = std::min(block.panels_end, p0 + TP);
      for (int64_t r = 0; r < block.rows; r += STEPS<E>) {
        const int64_t begin = std::max(p0, block.begin[r / ROWS]), end = std::min(p1, block.end[r / ROWS]);
        for (int64_t p = begin; p < end; ++p) slopes(block, room, r, p, p - p0, means, lam);
      }
      for (int m = 0; m < maps_; ++m)
        weigh_tile(block, room.scores[m], slot.keys_along + (m >= shared_) % K_ * panels * d_columns_ * PW_STEPS,
                   d_columns_, p0, p1, room.grad_query + m * BLOCK * d_columns_);
      wait_until([&] { return all_passed(slot, index, p1); });  // fixed order of sums
      for (int64_t p = p0; p < p1; ++p) {
        int from = 0, to = block.groups;
        while (from < to && !(block.begin[from] <= p && p < block.end[from])) ++from;
        while (from < to && !(block.begin[to - 1] <= p && p < block.end[to - 1])) --to;
        if (from == to) continue;
        const int64_t first = from * ROWS;
        const int count = int(std::min<int64_t>(to * ROWS, block.rows) - first);
        const int64_t step = first / STEPS<E>;
        const int steps = int(divide_up(count, STEPS<E>));
        for (int m = 0; m < maps_; ++m) {
          const E *from = IN_PAIRS ? slopes_down(room, m, p - p0, first)
                                   : reinterpret_cast<const E *>(scores_at(block, room.scores[m], p, first));
          add_to_keys(block, from, PW, room.query_down + (m * (BLOCK / STEPS<E>) + step) * d_columns_, d_columns_,
                      d_columns_, p, steps, key_sums[(m >= shared_) % K_]);
        }
        for (int h = 0; h < shared_; ++h) {
          const E *const difference = reinterpret_cast<const E *>(scores_at(block, room.slope[h], p, first));
          const E *const cotangent = room.grad_down + (h * (BLOCK / STEPS<E>) + step) * dv_columns_;
          if (direct_values_)
            for (int64_t part = 0; part < call_.value_parts; ++part)
              add_to_keys(block, difference, PW * STEPS<E>, cotangent + part * part_, dv_columns_, part_, p, steps,
                          reinterpret_cast<T *>(grad_value_rows(group, part)));
          else
            add_to_keys(block, difference, PW * STEPS<E>, cotangent, dv_columns_, dv_columns_, p, steps, slot.value_sum);
        }
      }
      slot.passed[index].store(p1);
    }
    slot.passed[index].store(END);
    for (int h = 0; h < shared_; ++h)
      for (int m = 0; m < S; ++m) {
        In *to = static_cast<In *>(call_.grad_query) +
                 (((block.item.batch * heads + block.head + h) * S + m) * call_.queries + first_row) * d_;
        if (m == 1 && h > 0) {
          std::fill(to, to + block.rows * d_, In{});
          continue;
        }
        const T *from = room.grad_query + (m ? shared_ : h) * BLOCK * d_columns_;
        for (int64_t r = 0; r < block.rows; ++r)
          for (int64_t c = 0; c < d_; ++c) put(to + r * d_ + c, from[r * d_columns_ + c]);
      }
  }

  // Replaces the scores of a row in a tile by its map P; returns the sum of P · dP.
  INLINE T map_of(const Block &block, T *scores, T *slope, int64_t row, int64_t begin, int64_t end,
                  const T *statistics) const {
    const Vec<T> less = splat(statistics[0]), share = splat(statistics[1]);
    T *x = scores_at(block, scores, begin, row);
    const T *g = scores_at(block, slope, begin, row);
    Vec<T> sums{}, more{};
    for (int64_t p = begin; p < end; ++p, x += BLOCK * PW, g += BLOCK * PW) {
      const Vec<T> a = exp2_of((load(x) - less) * factor_) * share;
      const Vec<T> b = exp2_of((load(x + L) - less) * factor_) * share;
      store<T>(x, a), store<T>(x + L, b);
      sums += a * load(g), more += b * load(g + L);
    }
    return sum_of<T>(sums + more);
  }
  INLINE T dot_of(const Block &block, T *map, T *slope, int64_t row, int64_t begin, int64_t end) const {
    const T *x = scores_at(block, map, begin, row), *g = scores_at(block, slope, begin, row);
    Vec<T> sums{}, more{};
    for (int64_t p = begin; p < end; ++p, x += BLOCK * PW, g += BLOCK * PW)
      sums += load(x) * load(g), more += load(x + L) * load(g + L);
    return sum_of<T>(sums + more);
  }

  E *slopes_down(const Room &room, int map, int64_t panel, int64_t row) const {
    return room.slopes_down + ((map * TP + panel) * BLOCK + row) / 2 * PW;
  }

  // For the rows of one operand, from `row`: maps and dP become the gradients of the scores, in the layouts of the
  // products along keys and along queries; the difference of the maps replaces dP. The second map's gradient is the sum
  // over the heads that share it.
  INLINE void slopes(const Block &block, const Room &room, int64_t row, int64_t panel, int64_t panel_of_tile,
                     const T (&means)[S][MOST_SHARED][BLOCK], const T (&lam)[MOST_SHARED][BLOCK]) const {
    const T scale = T(call_.scale);
    Vec<T> shared[STEPS<E>][2] = {};
    for (int h = 0; h < shared_; ++h) {
      Vec<T> grads[STEPS<E>][2] = {}, difference[STEPS<E>][2] = {};
#pragma GCC unroll 2
      for (int i = 0; i < STEPS<E>; ++i) {
        if (row + i >= block.rows) break;
        const int64_t r = row + i;
        const T *g = scores_at(block, room.slope[h], panel, r), *x = scores_at(block, room.scores[h], panel, r);
        const T *y = scores_at(block, room.scores[maps_ - 1], panel, r);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const Vec<T> slope = load(g + half * L), first = load(x + half * L);
          grads[i][half] = scale * (first * (slope - means[0][h][r]));
          difference[i][half] = first;
          if (S == 2) {
            const Vec<T> second = -lam[h][r] * load(y + half * L);
            shared[i][half] += scale * (second * (slope - means[S - 1][h][r]));
            difference[i][half] = first + second;
          }
        }
      }
      put_slopes(block, room, h, row, panel, panel_of_tile, grads);
      T *const g = scores_at(block, room.slope[h], panel, row);
#if defined(__AVX512BF16__)
      if constexpr (IN_PAIRS) {
        for (int half = 0; half < 2; ++half)
          store<E>(reinterpret_cast<E *>(g) + half * L, pairs_across(difference[0][half], difference[1][half]));
        continue;
      }
#endif
      store<T>(g, difference[0][0]), store<T>(g + L, difference[0][1]);
    }
    if (S == 2) put_slopes(block, room, shared_, row, panel, panel_of_tile, shared);
  }
  // Gradients of the scores of a map, in both layouts.
  INLINE void put_slopes(const Block &block, const Room &room, int map, int64_t row, int64_t panel,
                         int64_t panel_of_tile, const Vec<T> (&grads)[STEPS<E>][2]) const {
    for (int i = 0; i < STEPS<E>; ++i)
      put_along(scores_at(block, room.scores[map], panel, row + i), grads[i][0], grads[i][1]);
#if defined(__AVX512BF16__)
    if constexpr (IN_PAIRS)
      for (int half = 0; half < 2; ++half)
        store<E>(slopes_down(room, map, panel_of_tile, row) + half * L, pairs_across(grads[0][half], grads[1][half]));
#endif
  }

  // Whether every earlier block has finished the panels up to there. All must be checked: a block that sees few keys
  // ends before an earlier one that sees more.
  static bool all_passed(const Slot &slot, int64_t index, int64_t panel) {
    for (int64_t i = slot.ended->load(); i < index; ++i) {
      const int64_t passed = slot.passed[i].load();
      if (passed < panel) return false;
      int64_t expected = i;
      if (passed == END) slot.ended->compare_exchange_strong(expected, i + 1);
    }
    return true;
  }

  // sums (M, columns), for the rows of a panel's keys, += scores (count, PW)ᵀ · rows (count, columns)
  void add_to_keys(const Block &block, const E *scores, int64_t scores_stride, const E *rows, int64_t row_stride,
                   int64_t columns, int64_t panel, int count, T *sums) const {
    const int keys = int(std::min<int64_t>(PW, block.item.keys - panel * PW));
#if HAS_TILES
    return collect_tiles(keys, scores, scores_stride, rows, row_stride, columns, sums + panel * PW * columns, count);
#endif
    for (int64_t c = 0; c < columns; c += 2 * L) {
      T *to = sums + panel * PW * columns + c;
      if (columns - c >= 2 * L)
        collect<E, 2>(keys, scores, scores_stride, rows + c, row_stride, to, columns, count);
      else
        collect<E, 1>(keys, scores, scores_stride, rows + c, row_stride, to, columns, count);
    }
  }

  const antiphase_problem &call_;
  std::vector<Item> items_;
  int64_t d_steps_, dv_steps_, part_steps_, d_stride_, dv_stride_;
  int64_t d_, dv_, part_, K_, d_columns_, dv_columns_, most_keys_ = 0, most_blocks_ = 0, most_panels_ = 0, slots_ = 0;
  int64_t total_ = 0;
  int shared_, maps_, held_;  // heads and maps of a block, and maps that the room holds at once
  T factor_;
  bool direct_keys_, direct_values_;
  Slot slot_[16];
  std::vector<int64_t> starts_;
  std::vector<std::pair<int64_t, bool>> parts_;
  std::unique_ptr<std::atomic<int64_t>[]> packed_, done_;
  std::unique_ptr<std::atomic<int32_t>[]> closed_;
  std::atomic<int64_t> next_{0};
};

}  // namespace
