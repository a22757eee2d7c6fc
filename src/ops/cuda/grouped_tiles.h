// How products of groups (ops/grouped.h) are cut into tiles, and who computes them. The walk over tiles is the same for
// every kernel and reads nothing but the offsets, so that one graph serves every routing; it is plain C++, which a test
// walks on the host.
#pragma once

#include <cstdint>
#include <string>

#include "device/cuda/launch.h"
#include "ops/fp8.h"
#include "ops/grouped.h"

namespace redline::ops::cuda {

// A tile of a product's result. Of a product over rows (y, dx) all its rows are rows of one group, so begin <= row <
// end; of a gradient of weights `row` and `column` are of the group's matrix, and the group's rows are summed over.
struct GroupTile {
  std::int32_t group, row, column;
  std::int32_t begin, end;  // the group's rows
  constexpr std::int32_t rows() const { return end - begin; }
};

// The tiles of a result in their order: group after group, in each row after row of tiles. `across` tiles are a row.
// Tiles are numbered from 0; the numbers asked for may only grow.
class TilesOfRows {
 public:
  constexpr TilesOfRows(const std::int32_t* offsets, std::int32_t groups, std::int32_t tile_rows,
                        std::int32_t tile_columns, std::int32_t across)
      : offsets_(offsets), groups_(groups), rows_(tile_rows), columns_(tile_columns), across_(across) {}

  // Goes to tile `number`; false where there are fewer.
  constexpr bool seek(std::int32_t number, GroupTile& tile) {
    for (; group_ < groups_; ++group_) {
      const std::int32_t begin = offsets_[group_], end = offsets_[group_ + 1];
      const std::int32_t tiles = (end - begin + rows_ - 1) / rows_ * across_;
      if (number < first_ + tiles) {
        const std::int32_t own = number - first_;
        tile = {group_, begin + own / across_ * rows_, own % across_ * columns_, begin, end};
        return true;
      }
      first_ += tiles;
    }
    return false;
  }

 private:
  const std::int32_t* offsets_;
  std::int32_t groups_, rows_, columns_, across_;
  std::int32_t group_ = 0, first_ = 0;  // a group, and its first tile
};

// The place of a group among all, those with the most rows first.
constexpr std::int32_t place_by_rows(const std::int32_t* offsets, std::int32_t groups, std::int32_t group) {
  const std::int32_t rows = offsets[group + 1] - offsets[group];
  std::int32_t place = 0;
  for (std::int32_t g = 0; g < groups; ++g) {
    const std::int32_t others = offsets[g + 1] - offsets[g];
    if (others > rows || (others == rows && g < group)) ++place;
  }
  return place;
}
inline constexpr std::int32_t kMostOrdered = 256;  // groups; more are taken as they come

// The numbers of the tiles that one of `workers` takes. Back and forth, all have nearly as much to do where tiles
// become smaller and smaller.
class Turns {
 public:
  constexpr Turns(std::int32_t worker, std::int32_t workers, bool back_and_forth)
      : worker_(worker), workers_(workers), back_(back_and_forth) {}
  constexpr std::int32_t number() const {
    return turn_ * workers_ + (back_ && turn_ % 2 == 1 ? workers_ - 1 - worker_ : worker_);
  }
  constexpr void advance() { ++turn_; }

 private:
  std::int32_t worker_, workers_, turn_ = 0;
  bool back_;
};

// Every group has `down` x `across` tiles, whether it has rows or not, and a tile takes as long as its group has rows:
// groups come in `order`, or as they lie where there is none. It walks over groups as the other does: with a
// division by the tiles of a group instead, ptxas 13.0 gave a multiplying warp of dW 177 of its 232 registers, and half
// of the sums of eight-bit products went to local memory and back in every step.
class TilesOfMatrices {
 public:
  constexpr TilesOfMatrices(const std::int32_t* offsets, const std::uint8_t* order, std::int32_t groups,
                            std::int32_t tile_rows, std::int32_t tile_columns, std::int32_t across, std::int32_t down)
      : offsets_(offsets),
        order_(order),
        groups_(groups),
        rows_(tile_rows),
        columns_(tile_columns),
        across_(across),
        down_(down) {}

  constexpr bool seek(std::int32_t number, GroupTile& tile) {
    const std::int32_t tiles = across_ * down_;
    for (; group_ < groups_ && number >= first_ + tiles; ++group_) first_ += tiles;
    if (group_ == groups_) return false;
    const std::int32_t own = number - first_, group = order_ ? order_[group_] : group_;
    tile = {group, own / across_ * rows_, own % across_ * columns_, offsets_[group], offsets_[group + 1]};
    return true;
  }

 private:
  const std::int32_t* offsets_;
  const std::uint8_t* order_;
  std::int32_t groups_, rows_, columns_, across_, down_;
  std::int32_t group_ = 0, first_ = 0;  // a place in the order, and its first tile
};

// By Hopper's products of warp groups (grouped_hopper.cu), and why not: empty where they can.
std::string hopper_why_not(const GroupedLinear<Tensor>& op, const device::cuda::Launch& launch);
std::string hopper_why_not(const GroupedLinearInputGrad<Tensor>& op, const device::cuda::Launch& launch);
std::string hopper_why_not(const GroupedLinearWeightGrad<Tensor>& op, const device::cuda::Launch& launch);
std::string hopper_why_not(const GroupedFp8Product<Tensor>& op, const device::cuda::Launch& launch);
std::string hopper_why_not(const GroupedFp8WeightGrad<Tensor>& op, const device::cuda::Launch& launch);
void hopper_run(const GroupedLinear<Tensor>& op, const device::cuda::Launch& launch);
void hopper_run(const GroupedLinearInputGrad<Tensor>& op, const device::cuda::Launch& launch);
void hopper_run(const GroupedLinearWeightGrad<Tensor>& op, const device::cuda::Launch& launch);
void hopper_run(const GroupedFp8Product<Tensor>& op, const device::cuda::Launch& launch);
void hopper_run(const GroupedFp8WeightGrad<Tensor>& op, const device::cuda::Launch& launch);

}  // namespace redline::ops::cuda
