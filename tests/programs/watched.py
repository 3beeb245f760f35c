"""A service that its manager watches: it reports that it is ready, and then that it is alive, until a request silences it."""
import os
import socket
import sys

own = str(os.getpid())
for name in ("LISTEN_PID", "WATCHDOG_PID"):
    if os.environ.get(name) != own:
        sys.exit(f"{name} is {os.environ.get(name)}, and this process {own}")
manager = os.environ["NOTIFY_SOCKET"].replace("@", "\0", 1)
notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listening = socket.socket(fileno=3)
listening.settimeout(0.5)
lives = b"WATCHDOG=1"
notices.sendto(b"READY=1", manager)
while True:
    if lives:
        notices.sendto(lives, manager)
    try:
        peer, _ = listening.accept()
    except TimeoutError:
        continue
    with peer:
        if peer.recv(64) == b"be silent":
            lives = None
        peer.sendall(own.encode())
