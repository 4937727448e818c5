// The part of XLA's foreign function interface that these calls read.
//
// XLA hands every call one frame of plain C structs and keeps their layout stable; each carries its size, and new fields are
// added behind the old ones. Only what is needed is declared, so that the build needs no headers of any version of JAX: a
// library built against newer headers declares a newer interface, and an older XLA refuses it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace frame {

struct Extension {
  size_t size;
  int32_t type;
  Extension* next;
};

struct Version {
  size_t size;
  Extension* extension;
  int32_t major, minor;
};

struct Metadata {
  size_t size;
  Version version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

constexpr int32_t METADATA = 1;  // the type of a MetadataExtension
constexpr int32_t EXECUTE = 3;   // the stage in which there is something to do
constexpr int32_t FLOAT32 = 11, FLOAT64 = 12;

struct Buffer {
  size_t size;
  Extension* extension;
  int32_t type;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct Buffers {  // arguments, and in the same layout results
  size_t size;
  Extension* extension;
  int64_t count;
  int32_t* kinds;
  Buffer** items;
};

struct Span {
  const char* text;
  size_t length;
};

struct Array {
  int32_t type;
  size_t count;
  const int64_t* data;
};

struct Attributes {
  size_t size;
  Extension* extension;
  int64_t count;
  int32_t* kinds;
  Span** names;
  void** items;
};

struct ErrorRequest {
  size_t size;
  Extension* extension;
  const char* message;
  int32_t code;
};

struct Api {
  size_t size;
  Extension* extension;
  Version version;
  const void* internal;
  void* (*error)(ErrorRequest*);
};

struct Call {
  size_t size;
  Extension* extension;
  const Api* api;
  void* context;
  int32_t stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

}  // namespace frame
