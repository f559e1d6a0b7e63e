"use strict";
// Pictures that are dropped on the page, chosen or pasted: sent to the lab's inbox one after the other, and their
// paths pasted into the console, whose composer makes attachments of them.

const said = document.getElementById("said");
let clears = 0;

function say(text, wrong) {
  said.textContent = text;
  said.classList.toggle("-wrong", Boolean(wrong));
  clearTimeout(clears);
  clears = setTimeout(() => { said.textContent = ""; }, wrong ? 15000 : 6000);
}

async function send(file) {
  say(`${file.name}: sending`);
  const answer = await fetch(`upload?name=${encodeURIComponent(file.name)}`, {
    method: "POST",
    headers: { "X-Vlmconsole": "upload", "Content-Type": "application/octet-stream" },
    body: file,
  });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error);
  return told;
}

function paste(text) {
  const target = document.querySelector(".xterm-helper-textarea");
  if (!target) return;
  const data = new DataTransfer();
  data.setData("text/plain", text);
  target.focus();
  target.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
}

async function take(files) {
  for (const file of files) {
    try {
      const told = await send(file);
      say(`${told.name} is in the inbox: ${told.said}`);
      paste(told.quoted);
    } catch (error) {
      say(`${file.name}: ${error.message}`, true);
    }
  }
}

// The keyboard is live at once, without a click: the terminal's own field takes it when it is there, and again when
// the window comes back. What a person has chosen meanwhile (the file dialog's button) is left alone.
function listen() {
  const target = document.querySelector(".xterm-helper-textarea");
  if (target && (document.activeElement === document.body || !document.activeElement)) target.focus();
  return Boolean(target);
}
const waiting = new MutationObserver(() => { if (listen()) waiting.disconnect(); });
if (!listen()) waiting.observe(document.documentElement, { childList: true, subtree: true });
new MutationObserver(listen).observe(document.body, { attributes: true, attributeFilter: ["class"] });
addEventListener("focus", listen);

addEventListener("dragover", (event) => {
  if (!event.dataTransfer.types.includes("Files")) return;
  event.preventDefault();
  document.body.classList.add("-over");
});
addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) document.body.classList.remove("-over");
});
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("-over");
  take([...event.dataTransfer.files]);
});
addEventListener("paste", (event) => {
  const files = [...(event.clipboardData ? event.clipboardData.files : [])];
  if (!files.length) return;
  event.preventDefault();
  event.stopPropagation();
  take(files);
}, true);
document.querySelector("#pick input").addEventListener("change", (event) => {
  take([...event.target.files]);
  event.target.value = "";
});
