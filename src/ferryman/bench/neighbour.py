"""A busy neighbour: a process that only computes, for ever."""

if __name__ == "__main__":
    while True:
        pass
