// Sockets that a child made by fork closes at once. Otherwise they would stay open as long as the
// child lives, and peers would not notice that this process has died.
#pragma once

namespace contextile {

// From now on children close the socket, as long as the descriptor stands for it.
void close_in_children(int socket);

}  // namespace contextile
