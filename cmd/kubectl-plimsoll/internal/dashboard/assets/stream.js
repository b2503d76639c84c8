// The connection to the server, which is opened again for as long as it takes.

const longestPause = 10;

// follow calls page with each message, end with the reason of the end, and lost with the seconds until the next try. It
// returns a function that tries at once.
export function follow({ page, end, lost }) {
  let pause = 1;
  let source;
  let timer;

  function open() {
    clearInterval(timer);
    source?.close();
    source = new EventSource("events");
    source.addEventListener("page", (event) => {
      pause = 1;
      page(JSON.parse(event.data));
    });
    source.addEventListener("end", (event) => {
      source.close();
      end(JSON.parse(event.data));
    });
    source.addEventListener("error", () => {
      source.close();
      wait(pause);
      pause = Math.min(pause * 2, longestPause);
    });
  }

  function wait(seconds) {
    lost(seconds);
    timer = setInterval(() => {
      seconds -= 1;
      if (seconds > 0) {
        lost(seconds);
      } else {
        open();
      }
    }, 1000);
  }

  open();
  return open;
}
