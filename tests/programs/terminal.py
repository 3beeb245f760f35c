# terminal.py COMMAND...: runs a command that ends in counts_signals as a shell would, in the
# foreground of a terminal, and types.
import os, pty, signal, sys

shell, terminal = pty.fork()
if shell == 0:
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execvp(sys.argv[1], sys.argv[1:])
    while True:
        _, status = os.waitpid(job, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            print("ended", os.waitstatus_to_exitcode(status), flush=True)
            os._exit(0)
        # At once, and before the job writes again.
        os.write(1, b"job %d\nstopped\n" % job)
        os.killpg(job, signal.SIGCONT)

text = b""
answered = 0
job = 0
ended = False
while not ended:
    try:
        text += os.read(terminal, 4096)
    except OSError:
        break
    lines = text.replace(b"\r", b"").split(b"\n")[:-1]
    for line in lines[answered:]:
        answered += 1
        line = line.replace(b"^C", b"").replace(b"^Z", b"")
        print(line.decode(), flush=True)
        ended = line.startswith(b"ended")
        if line.startswith(b"ready"):
            os.write(terminal, b"\x03")
        elif line == b"INT":
            os.write(terminal, b"\x1a")
        elif line.startswith(b"job"):
            job = int(line.split()[1])
        if b"CONT" in lines[:answered] and job:
            os.kill(job, signal.SIGRTMAX)
            job = 0
