() => {
  document.documentElement.lang = "en";
  const name = (element, text) => element.getAttribute("aria-label") === text || element.setAttribute("aria-label", text);
  const mend = () => {
    // What assistive technology needs and Gradio's own markup lacks: labels that begin with the visible text.
    for (const one of document.querySelectorAll("button.upload-container")) {
      const title = one.closest(".block")?.querySelector("label, [data-testid=block-label]")?.innerText?.trim() ?? "";
      name(one, `${one.innerText.replace(/\s+/g, " ").trim()} ${title}`.trim());
      one.removeAttribute("aria-dropeffect");
    }
    // A button within a button: photos can be dropped again after the list is cleared.
    for (const one of document.querySelectorAll("button[aria-label='common.upload']")) one.style.display = "none";
  };
  new MutationObserver(mend).observe(document.body, {childList: true, subtree: true, characterData: true});
  mend();
}
