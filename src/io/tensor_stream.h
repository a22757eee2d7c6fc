// Streams the tensors of a file to their destination: the file is read once, from front to back, converted by all
// threads and hashed on the way. The disk is kept busy meanwhile, and at most four megabytes a thread are held.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "base/thread_pool.h"
#include "io/manifest.h"
#include "io/safetensors.h"

namespace redline::io {

// Bytes of the file that are under way at a time. Threads wait for each other at the end of each window, so a window
// that needs no memory of its own is a long one.
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
  FileHashes hashes = {};                       // of the file; a mismatch is a UserError at the end
  ThreadPool& pool;
  std::int64_t window = kStreamWindow;
  // Hears how many bytes of the file were read, in the calling thread, every few parts and after each window: a window
  // may take a slow disk many seconds. An exception from it ends the stream.
  std::function<void(std::uint64_t bytes)> progress = {};
  bool finite = true;       // NaN or infinity in a wanted tensor is a UserError at the end, which counts them
  bool new_memory = false;  // destinations are fresh memory: their pages are touched while waiting for the disk
  // The elements wanted of each tensor; empty: all of all. Other ranks read the others. A stretch of `hashes` is read
  // whole and checked on the rank that wants its first bytes. A stretch whose first bytes no rank wants, such as the
  // header, is checked where `rest` is set. So all ranks together check everything, each stretch once.
  std::span<const ElementRange> parts = {};
  bool rest = true;
};

// `place` gives the destination of each piece and the type it is converted to (as StoredTensor::convert). It is called
// from this thread and in order, pieces of a tensor included. The memory must stay until `done` was called for all
// pieces of the window.
struct PiecePlace {
  std::byte* at = nullptr;
  DType dtype = DType::f32;
};
using PlacePiece = std::function<PiecePlace(const TensorPiece& piece)>;
using PiecesDone = std::function<void(std::span<const TensorPiece> pieces)>;
std::uint64_t stream_bytes(const TensorStream& stream);  // to be read of the file
void stream_tensors(const TensorStream& stream, const PlacePiece& place, const PiecesDone& done);

}  // namespace redline::io
