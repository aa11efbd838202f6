// The program's own pthread_create, which its shared libraries use in place of the C library's.
// gRPC 1.51 counts a thread that it could not start as one of its threads and gives it work, so
// that calls of a connection are never answered and no error shows. A process that cannot start a
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
