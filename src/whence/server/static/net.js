/* Talking to the server: questions with one answer, and jobs that answer bit by bit and can be cancelled. */

class Refused extends Error {
  constructor(message, kind, status) {
    super(message);
    Object.assign(this, { kind, status });
  }
}

async function answer(response) {
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  const told = body?.error ?? `The server answered ${response.status}.`;
  throw new Refused(told, body?.kind ?? "", response.status);
}

async function asked(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer. Is `whence serve` still running?", "gone", 0);
  }
  return response;
}

export const get = async (path, signal) => answer(await asked(path, { signal }));

const posting = (body, signal) => ({
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
});

export const post = async (path, body, signal) => answer(await asked(path, posting(body, signal)));

/** A piece of work that is short enough to wait for: its one result. */
export async function ask(body, signal) {
  const { results, failed } = await post("/api/ask", body, signal);
  if (!results.length) throw new Refused(failed[0]?.error ?? "There is no answer.", failed[0]?.kind ?? "", 422);
  return results[0];
}

/** A file as the server made it. */
export async function postForFile(path, body) {
  const response = await asked(path, posting(body));
  if (!response.ok) await answer(response);
  return response.blob();
}

const ENDS = { done: "done", cancelled: "cancelled", failed_all: "failed" };

/** Starts a job. `on` has listeners by the events' names; `finished` is a promise of "done", "cancelled" or
 * "failed". */
export function job(request, on = {}) {
  let source = null, id = null, stopped = false, end;
  const finished = new Promise((resolve) => (end = resolve));
  const close = (how) => {
    source?.close();
    end(how);
  };
  const listen = () => {
    source = new EventSource(`/api/jobs/${encodeURIComponent(id)}/events`);
    for (const name of ["progress", "result", "failed", "done", "cancelled", "failed_all"]) {
      source.addEventListener(name, (event) => {
        if (stopped) return;
        on[name === "failed_all" ? "failed" : name]?.(JSON.parse(event.data || "null"));
        if (ENDS[name]) close(ENDS[name]);
      });
    }
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED || stopped) return; // it connects again by itself
      on.failed?.({ error: "The connection to the server was lost." });
      close("failed");
    };
  };
  post("/api/jobs", request).then(
    (told) => {
      id = told.id;
      if (stopped) void asked(`/api/jobs/${encodeURIComponent(id)}`, { method: "DELETE" }).catch(() => {});
      else listen();
    },
    (error) => {
      if (!stopped) on.failed?.({ error: error.message, kind: error.kind });
      close("failed");
    },
  );
  const cancel = () => {
    if (stopped) return;
    stopped = true;
    if (id) void asked(`/api/jobs/${encodeURIComponent(id)}`, { method: "DELETE" }).catch(() => {});
    close("cancelled");
  };
  return { finished, cancel };
}
