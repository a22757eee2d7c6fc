// Tensors of a file on their way to somewhere else: the file is read once, from front to back, converted by all threads
// and hashed on the way. The disk is kept busy meanwhile, and four megabytes a thread are the most that is held.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "base/thread_pool.h"
#include "io/file_hashes.h"
#include "io/safetensors.h"

namespace redline::io {

// Bytes of the file that are under way at a time. Threads wait for each other at the end of each window, so that where
// a window needs no memory of its own it is a long one.
inline constexpr std::int64_t kStreamWindow = std::int64_t{32} << 20, kLongStreamWindow = std::int64_t{256} << 20;

// Elements [first, first + count) of wanted[index].
struct TensorPiece {
  std::size_t index = 0;
  std::int64_t first = 0, count = 0;
};

struct ElementRange {
  std::int64_t first = 0, count = 0;
};

struct TensorStream {
  const SafetensorsReader& file;
  std::span<const StoredTensor* const> wanted;  // of the file, in its order
  FileHashes hashes = {};                       // of the file; where one is another it is a UserError at the end
  ThreadPool& pool;
  std::int64_t window = kStreamWindow;
  // Hears, in the calling thread, every few parts and after each window, how many bytes of the file have been read: a
  // window may take a slow disk many seconds. An exception from it ends the stream.
  std::function<void(std::uint64_t bytes)> progress = {};
  bool finite = true;       // NaN or infinity in a tensor that is wanted is a UserError at the end, which counts them
  bool new_memory = false;  // what is placed was never written: its pages are made while the disk is waited for
  // Which elements of each wanted tensor; empty: all of all. The others are read by other ranks. A stretch of `hashes`
  // is read whole, and held against its hash, where it begins with what is wanted here, and where `rest` is set also if
  // it begins with what no rank wants, as the header: so all ranks together hold everything, each stretch once.
  std::span<const ElementRange> parts = {};
  bool rest = true;
};

// Window after window: `place` says where each piece goes and what it is converted to (as StoredTensor::convert), in
// order and from this thread; when all of a window are there, `done` hears of them. The memory that it names must stay
// until then. Pieces of a tensor come in order.
struct PiecePlace {
  std::byte* at = nullptr;
  DType dtype = DType::f32;
};
using PlacePiece = std::function<PiecePlace(const TensorPiece& piece)>;
using PiecesDone = std::function<void(std::span<const TensorPiece> pieces)>;
std::uint64_t stream_bytes(const TensorStream& stream);  // that will be read of the file
void stream_tensors(const TensorStream& stream, const PlacePiece& place, const PiecesDone& done);

}  // namespace redline::io
