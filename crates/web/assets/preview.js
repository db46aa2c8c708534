// A preview in a frame: iframe[data-preview] shows a page with what is in the fields that have data-preview-name.
export function start() {
  const frame = document.querySelector("iframe[data-preview]");
  if (!frame) return;
  const fields = () => [...document.querySelectorAll("[data-preview-name]")];
  let timer = 0;
  document.addEventListener("input", (event) => {
    if (!event.target.matches?.("[data-preview-name]")) return;
    clearTimeout(timer);
    timer = setTimeout(() => {
      const query = new URLSearchParams(fields().map((field) => [field.dataset.previewName, field.value]));
      // Replaced, so that the way back does not lead through every letter.
      frame.contentWindow.location.replace(`${frame.dataset.preview}?${query}`);
    }, 250);
  });
}
