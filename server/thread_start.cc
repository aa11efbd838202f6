// The program's own pthread_create, which its shared libraries take in place of the C library's.
// gRPC 1.51 counts a thread that it could not start among those that it has, gives it work, and so
// leaves the calls of a connection unanswered for ever, without a word: a process that lacks a
// thread ends instead.
#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>

#include "server/process_memory.h"

extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
    void* argument) noexcept {
  static const auto create =
      reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  const int error = create(thread, attributes, body, argument);
  if (error == EAGAIN || error == ENOMEM) quantgate::EndWithout("a thread");
  return error;
}
