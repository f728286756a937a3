"""Mistakes that were found once and must stay fixed: what was wrong, by an id that tests name with `covers("W4")`.

`tests/unit/repository/test_findings_are_covered.py` checks that a test names each of them.
"""

FINDINGS: dict[str, str] = {
    # Safety: files of strangers
    "S1": "A folder or repository with weights could run code: pickled weights, or a configuration that names Python.",
    "S2": "Opening an image could start a program, such as Ghostscript for EPS.",
    "S3": "An adapter's manifest could name files outside its folder, which were then read or removed.",
    # Damage to what users have
    "D1": "A grid or a discovery with --overwrite emptied a folder that it had not written.",
    "D2": "A paper replaced tables and figures that it had not made.",
    "D3": "Outputs replaced links, lost file modes, and wrote over devices.",
    "D4": "A grid treated a folder of other files as its own.",
    "D5": "An index of one folder of photos was replaced by the index of another.",
    "D6": "While a new adapter was being saved, the old one was already broken.",
    # Wrong answers that nobody would notice
    "W1": "Two data folders with the same name shared rows of the feature cache.",
    "W2": "Images that were replaced in place were taken for the old ones by caches, cells, discoveries and --resume.",
    "W3": "Two processes could write into one folder, or continue from each other's checkpoints.",
    "W4": "Values that are not finite were trained on, saved and loaded.",
    "W5": "`model.disabled()` in one thread switched the adapter off in all threads.",
    "W6": "Images that were trained on were tested again under another file name.",
    "W7": "A list of images lost or invented classes, depending on its header.",
    "W8": "Training went on with fewer images after the data had vanished.",
    "W9": "Flipped bytes in an index or in stored moments were read as numbers.",
    "W10": "A process that waited for a lock was not told who had it, and a lock without a signature was ignored.",
    "W11": "Classes in another order, special tokens as class names and empty options gave wrong scores.",
    # Programs that hang
    "H1": "A named pipe among the photos stopped the program forever.",
    "H2": "Checks and reports took quadratic time or memory with thousands of classes.",
    "H3": "A sparse image file of terabytes was read into memory.",
    # What an ended process leaves behind
    "L1": "Worker processes went on after their parent had been killed.",
    "L2": "Temporary files and folders of a killed process stayed forever.",
    # Crashes
    "C1": "One extreme image ended a whole job.",
    "C2": "File names that are not UTF-8 ended training, testing, searching and reports.",
    "C3": "Settings of odd types ended in a traceback.",
    "C4": "A long list of class names was taken for a path and ended in a traceback.",
    "C5": "Damaged documents ended in a traceback: run record, shots, manifest, index, lists and splits.",
    "C6": "Absurd numbers on the command line ended in a traceback or filled the memory.",
    "C7": "Arguments of a wrong type ended in a traceback from inside.",
    # Ugly ones
    "U1": "Terminal escapes in file names reached the terminal.",
    "U2": "Class names could put markup into a model card.",
    "U3": "Class names could be formulas in CSV cells.",
    "U4": "A run, grid or cache inside the data folder became part of the data.",
    "U5": "A novel class whose name makes no prompt was noticed only after training.",
    "U6": "Ctrl-C while the command was being loaded printed a traceback.",
    # First hour of a new user
    "F1": "Photographs were trained on the CLIP of the synthetic world without a word.",
    "F2": "Search by attributes gave nearly the same results for all of them and did not say so.",
    "F3": "Progress bars hid count, time left or loss on narrow terminals.",
    "F4": "Waiting threads occupied all cores, and some commands had no --threads.",
    "F5": "Messages recommended commands and options that do not exist.",
    "F6": "After training, it was not said how good the result is, nor what to type next.",
    "F7": "The report of a run did not show what the adapter corrects and confuses.",
    "F8": "DeAR needed a role map that a user did not have.",
    "F9": "Minutes passed without output: no terminal, slow imports, a hub that does not answer.",
    "F10": "Methods and data sets of others needed a fork.",
    "F11": "A missing data set was reported without its page, license and layout.",
    "F12": "Help pages showed types and placeholders that mean nothing to a reader.",
    "F13": "One option had several names, and one name several meanings.",
    "F14": "A comparison on the paper's backbone did not show the published numbers.",
    "F15": "One table of the paper could not be made by itself, and a grid did not say how long it takes.",
    "F16": "Tables and sentences drew conclusions from one seed or one point.",
    "F17": "There was no plain image-to-logits module to export.",
    "F18": "`predict` took paths only, needed preparation, and one bad image lost all the others.",
    "F19": "HEIC photos of phones were skipped silently.",
    "F20": "Settings of a method could not be looked up, nor a recipe's values changed.",
    "F21": "The CSV did not say what its cells were made from, and tables were wider than the terminal.",
    "F22": "The README and the guides named addresses and files that do not exist.",
    "F23": "Pages were hard to read: contrast, broken numbers, axis labels, small screens.",
    "F24": "The repr of a public object filled the screen.",
    "F25": "`dear` alone printed an error, and completion did not work.",
}
