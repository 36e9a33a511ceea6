// Pages work without this file: it keeps a field when it changes, and looks how far a job is.
"use strict";

const read = (text) => new DOMParser().parseFromString(text, "text/html");
const problemIn = (text) => read(text).querySelector(".bad")?.textContent ?? text.slice(0, 500);
const GONE = "Not done: the studio does not answer. Start dpgen studio again, and open the address that it prints.";
// Whether something was typed that no file holds yet, which a page that is loaded again would lose.
let typed = false;

function put(text) {
  const fresh = read(text).body.firstElementChild, old = document.getElementById(fresh?.id);
  if (!old) return;
  old.querySelectorAll("details").forEach((details, place) => {
    const own = fresh.querySelectorAll("details")[place];
    if (own && details.open) own.open = true;
  });
  old.replaceWith(fresh);
  begin(fresh);
}

// Tells what is wrong beside the fields of a form, and leaves the fields alone: a person may be typing in the next one.
function tell(text) {
  const fresh = read(text).body.firstElementChild, form = document.getElementById(fresh?.id);
  if (!form) return;
  for (const told of fresh.querySelectorAll("[data-told]")) document.getElementById(told.id)?.replaceWith(told);
  for (const field of fresh.querySelectorAll("[aria-describedby]")) {
    const own = document.getElementById(field.id);
    own?.toggleAttribute("aria-invalid", field.hasAttribute("aria-invalid"));
    if (own) own.parentElement.className = field.parentElement.className;
  }
  form.className = `${fresh.className} kept`;
}

function say(form, text) {
  form.querySelector(".live-problem")?.remove();
  const told = Object.assign(document.createElement("p"), { className: "bad live-problem", textContent: text });
  told.setAttribute("role", "alert");
  if (text) form.append(told);
}

// Sends one field of a form, or all of them, after what was sent of it before.
function keep(form, field) {
  const all = new FormData(form), one = field && form.dataset.live === "tell";
  const sent = new URLSearchParams(one ? { [field.name]: field.value } : all);
  if (all.has("column")) sent.set("column", all.get("column"));
  form.pending = (form.pending ?? Promise.resolve()).then(async () => {
    try {
      const answer = await fetch(form.action + "?live", { method: "POST", body: sent }), text = await answer.text();
      if (!answer.ok) return say(form, problemIn(text));
      say(form, "");
      one ? tell(text) : put(text);
      if (form.dataset.live === "tell" && !one) document.getElementById(`${form.id}-type`)?.focus();
      const then = document.getElementById(form.dataset.then);
      if (then) put(await (await fetch(then.dataset.url)).text());
    } catch { say(form, GONE); }
  });
}

async function submit(form) {
  try {
    await Promise.all([...document.forms].map((one) => one.pending));
    if (!document.body.contains(form)) return document.querySelectorAll("#plan form").forEach((fresh) => say(fresh, "The plan has changed: look at it before you start."));
    const answer = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)) });
    if (answer.redirected) return answer.url.split("#")[0] === location.href.split("#")[0] ? location.reload() : (location.href = answer.url);
    say(form, problemIn(await answer.text()));
  } catch { say(form, GONE); }
}

async function poll(part) {
  try {
    const answer = await fetch(part.dataset.poll), text = await answer.text();
    if (!document.body.contains(part)) return;
    if (!answer.ok) return say(part, problemIn(text));
    const ended = read(text).querySelector("[data-ended]");
    const typing = document.activeElement?.matches("input, textarea, select");
    return ended && !typed && !typing ? location.reload() : put(text);
  } catch { setTimeout(() => poll(part), 3000); }
}

function upload(input) {
  const file = input.files[0], bar = input.parentElement.querySelector("progress"), problem = document.getElementById("upload-problem");
  const name = document.getElementById("name"), told = (text) => { problem.hidden = !text; problem.textContent = text; if (text) input.value = ""; };
  told("");
  if (!name.value) return told("Give the case a name first, and choose the file then.");
  const request = new XMLHttpRequest();
  request.open("POST", input.dataset.upload);
  request.setRequestHeader("x-case", encodeURIComponent(name.value));
  request.setRequestHeader("x-file", encodeURIComponent(file.name));
  request.upload.onprogress = (event) => { bar.hidden = false; bar.value = 100 * event.loaded / event.total; };
  request.onload = () => request.status === 200 ? (location.href = request.responseText) : told(problemIn(request.responseText));
  request.onerror = () => told(GONE);
  request.send(file);
}

function begin(root) {
  const all = (selector) => [...(root.matches?.(selector) ? [root] : []), ...root.querySelectorAll(selector)];
  for (const part of all("[data-poll]")) setTimeout(() => poll(part), 1000);
  for (const part of all("[data-load]")) fetch(part.dataset.load).then((answer) => answer.text()).then(put).catch(() => say(part, GONE));
  for (const form of all("form")) {
    const live = form.dataset.live;
    form.addEventListener("submit", (event) => { event.preventDefault();
      // Enter keeps the field that it is pressed in; a button sends all of them.
      const field = document.activeElement;
      live ? keep(form, field?.matches("input, textarea") ? field : null) : submit(form);
    });
    form.addEventListener("input", () => { typed ||= !live; });
    if (live) form.addEventListener("change", ({ target }) => {
      const later = target.parentElement.querySelector(".later");
      later ? (later.hidden = false) : target.name && keep(form, target);
    });
  }
  for (const details of all("details[data-more]")) {
    details.addEventListener("toggle", async () => {
      if (!details.open || details.querySelector(".fields")) return;
      const answer = await fetch(details.dataset.more).catch(() => null), text = (await answer?.text()) ?? "";
      answer?.ok ? details.append(read(text).body.firstElementChild) : say(details, answer ? problemIn(text) : GONE);
    });
  }
  for (const slider of all("input[data-for]")) {
    const field = document.getElementById(slider.dataset.for);
    slider.hidden = false;
    slider.addEventListener("input", () => { field.value = slider.value; });
    slider.addEventListener("change", () => keep(field.form, field));
    field.addEventListener("input", () => { slider.value = field.value || field.placeholder; });
  }
  for (const input of all("input[data-upload]")) {
    input.closest(".upload").hidden = false;
    input.addEventListener("change", () => upload(input));
  }
}

document.documentElement.classList.add("js");
begin(document);
